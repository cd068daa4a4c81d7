// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/context.h"

#include <map>
#include <mutex>

#include "kernels/call_check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/base/ordinal.h"
#include "kernels/cuda/runtime/gpu_probe.h"

namespace stoch::cuda {
namespace {

// Bytes of workspace that cuBLAS needs on Hopper. We pass a workspace so that cuBLAS does not allocate while a graph is
// recorded.
constexpr size_t kCublasWorkspaceBytes = size_t{32} << 20;

// The one stream of all device numbers that share GPU `ordinal` (SharesStreams). Created at first use, never destroyed.
cudaStream_t SharedStream(int ordinal) {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;
  const std::lock_guard lock(mutex);
  const auto [stream, is_new] = streams.try_emplace(ordinal, nullptr);
  if (is_new) STOCH_CUDA(cudaStreamCreateWithFlags(&stream->second, cudaStreamNonBlocking));
  return stream->second;
}

}  // namespace

DeviceContext::DeviceContext(int ordinal, std::shared_ptr<SiteTable> sites)
    : device{DeviceKind::kCuda, ordinal},
      workspace(device),
      tables(device),
      barrier_(AllocateDevice(device, GridBarrier::kBytes)),
      flags_(AllocateDevice(device, kFlags * sizeof(int))),
      words_(AllocateDevice(device, kWords * sizeof(uint32_t))),
      finite_flag_(AllocateDevice(device, sizeof(int))),
      finite_seen_(AllocatePinned(sizeof(int))) {
  DeviceGuard guard(device);
  sites_ = sites != nullptr ? std::move(sites) : std::make_shared<SiteTable>();
  cudaDeviceProp properties{};
  STOCH_CUDA(cudaGetDeviceProperties(&properties, OrdinalOf(ordinal)));
  l2_bytes = properties.l2CacheSize;
  traits = ProbeGpu(OrdinalOf(ordinal));
  if (SharesStreams()) {
    stream = SharedStream(OrdinalOf(ordinal));
  } else {
    STOCH_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  STOCH_CUDA(cudaStreamCreateWithFlags(&copy_stream, cudaStreamNonBlocking));
  STOCH_CUDA(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming));
  STOCH_CUDA(cudaMemsetAsync(barrier_.data(), 0, barrier_.bytes(), stream));
  STOCH_CUDA(cudaMemsetAsync(flags_.data(), 0, flags_.bytes(), stream));
  STOCH_CUDA(cudaMemsetAsync(words_.data(), 0, words_.bytes(), stream));
  STOCH_CUDA(cudaMemsetAsync(finite_flag_.data(), 0, sizeof(int), stream));
  row_channel_.emplace(device, stream, traits.has_hopper_code, &shared_slot);
}

DeviceContext::~DeviceContext() {
  // Kernels may still be using memory that the members are about to free.
  try {
    DeviceGuard guard(device);
    (void)cudaDeviceSynchronize();
    if (cublas_ != nullptr) (void)cublasDestroy(cublas_);
    if (ready_ != nullptr) (void)cudaEventDestroy(ready_);
    if (stream != nullptr && !SharesStreams()) (void)cudaStreamDestroy(stream);
    if (copy_stream != nullptr) (void)cudaStreamDestroy(copy_stream);
  } catch (const DeviceError&) {
  }
}

bool DeviceContext::IsRecording() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  STOCH_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

SiteReporter DeviceContext::Reporter(const OpSite& site) {
  return SiteReporter{static_cast<int*>(finite_flag_.data()), sites_->begun(), sites_->Id(site)};
}

void DeviceContext::CheckFinite() {
  STOCH_CUDA(cudaMemcpyAsync(finite_seen_.data(), finite_flag_.data(), sizeof(int), cudaMemcpyDeviceToHost, stream));
  STOCH_CUDA(cudaStreamSynchronize(stream));
  const int met = *static_cast<const int*>(finite_seen_.data());
  if (met == 0) return;
  STOCH_CUDA(cudaMemsetAsync(finite_flag_.data(), 0, sizeof(int), stream));
  throw InvalidInput(SiteName(sites_->Site(met)) + ": NaN or infinity in the activations");
}

void DeviceContext::RecordReady() {
  DeviceGuard guard(device);
  STOCH_CUDA(cudaEventRecord(ready_, stream));
}

cublasHandle_t DeviceContext::cublas() {
  if (cublas_ == nullptr) {
    STOCH_CUBLAS(cublasCreate(&cublas_));
    cublas_workspace_ = AllocateDevice(device, kCublasWorkspaceBytes);
    STOCH_CUBLAS(cublasSetStream(cublas_, stream));
    STOCH_CUBLAS(cublasSetWorkspace(cublas_, cublas_workspace_.data(), kCublasWorkspaceBytes));
  }
  return cublas_;
}

}  // namespace stoch::cuda
