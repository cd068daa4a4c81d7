// SPDX-License-Identifier: Apache-2.0
// The part of CudaBackend that concerns device memory: bytes free and in use, buffers, copies.
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "kernels/call_check.h"
#include "kernels/cuda/backend_impl.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/base/ordinal.h"
#include "kernels/cuda/runtime/bandwidth.h"
#include "kernels/cuda/runtime/nvml_memory.h"
#include "kernels/plan/context_bytes.h"

namespace stoch::cuda {

void CudaBackend::MeasureRuntime(PerDevice* entry, std::optional<int64_t> before) {
  // Allowances for memory that is allocated later: kernel code is loaded at the first launch of a kernel, and graphs
  // are recorded as batch sizes occur.
  constexpr int64_t kCodeBytes = int64_t{48} << 20;
  constexpr int64_t kGraphBytes = int64_t{16} << 20;
  static std::mutex mutex;
  // Bytes of the CUDA context by GPU ordinal: one context per process and GPU, however many backends are opened.
  static std::map<int, int64_t> contexts;
  const Device device = entry->context.device;
  DeviceGuard guard(device);
  const std::optional<int64_t> after = UsedDeviceBytes(OrdinalOf(device.index));
  const std::lock_guard lock(mutex);
  const int64_t context = contexts.try_emplace(OrdinalOf(device.index), ContextBytes(before, after)).first->second;
  entry->runtime_taken_bytes = context;
  entry->runtime_bytes = context + kCodeBytes + kGraphBytes;
}

DeviceInfo CudaBackend::info(Device device) const {
  const DeviceContext& ctx = At(device).context;
  DeviceGuard guard(device);
  cudaDeviceProp properties{};
  STOCH_CUDA(cudaGetDeviceProperties(&properties, OrdinalOf(device.index)));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  STOCH_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  int driver = 0;
  STOCH_CUDA(cudaDriverGetVersion(&driver));
  DeviceInfo info;
  info.name = properties.name;
  info.total_bytes = static_cast<int64_t>(total_bytes);
  info.free_bytes = static_cast<int64_t>(free_bytes);
  info.detail = "compute capability " + std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                ", " + std::to_string(properties.multiProcessorCount) + " SMs, code for sm_" +
                std::to_string(ctx.traits.code_architecture) + (ctx.traits.has_wgmma ? "a" : "") +
                ", driver for CUDA " + std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10);
  info.read_bytes_per_s = ctx.read_bytes_per_s;
  info.runtime_bytes = At(device).runtime_bytes;
  info.runtime_taken_bytes = At(device).runtime_taken_bytes;
  return info;
}

double CudaBackend::MeasureBandwidth(Device device) {
  DeviceContext& ctx = At(device).context;
  DeviceGuard guard(device);
  if (ctx.read_bytes_per_s == 0) ctx.read_bytes_per_s = MeasureReadBandwidth(ctx);
  return ctx.read_bytes_per_s;
}

Buffer CudaBackend::Allocate(Device device, int64_t bytes) {
  DeviceContext& ctx = At(device).context;
  DeviceGuard guard(device);
  Buffer buffer = AllocateDevice(device, static_cast<size_t>(bytes));
  if (bytes > 0) STOCH_CUDA(cudaMemsetAsync(buffer.data(), 0, static_cast<size_t>(bytes), ctx.stream));
  return buffer;
}

void CudaBackend::ReserveScratch(Device device, int64_t bytes) {
  DeviceContext& ctx = At(device).context;
  DeviceGuard guard(device);
  ctx.workspace.Reserve(static_cast<size_t>(bytes));
}

int64_t CudaBackend::AllocatedBytes(int64_t bytes) const {
  // cudaMalloc allocates pages of 2 MiB; several small buffers share a page.
  constexpr int64_t kPage = int64_t{2} << 20;
  return bytes < kPage / 2 ? bytes : (bytes + kPage - 1) / kPage * kPage;
}

Buffer CudaBackend::AllocateShared(Device device, int64_t bytes) {
  (void)At(device);  // throws if the device is not one of this backend's
  DeviceGuard guard(device);
  Buffer buffer = AllocatePinned(static_cast<size_t>(bytes), device);
  std::memset(buffer.data(), 0, buffer.bytes());
  return buffer;
}

void CudaBackend::CopyFromHost(const TensorView& to, const void* from) {
  DeviceContext& ctx = At(to.device).context;
  RequireDense({-1, "copy"}, to);
  DeviceGuard guard(to.device);
  STOCH_CUDA(cudaMemcpyAsync(to.data, from, static_cast<size_t>(to.bytes()), cudaMemcpyHostToDevice, ctx.stream));
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));  // when this function returns, the caller may overwrite `from`
}

void CudaBackend::CopyToHost(void* to, const TensorView& from) {
  DeviceContext& ctx = At(from.device).context;
  RequireDense({-1, "copy"}, from);
  DeviceGuard guard(from.device);
  STOCH_CUDA(cudaMemcpyAsync(to, from.data, static_cast<size_t>(from.bytes()), cudaMemcpyDeviceToHost, ctx.stream));
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
}

void CudaBackend::Copy(const TensorView& to, const TensorView& from) {
  DeviceContext& source = At(from.device).context;
  DeviceContext& target = At(to.device).context;
  CheckCopy(to, from);
  if (to.device == from.device) {
    DeviceGuard guard(to.device);
    // `to` and `from` may be pinned host memory of AllocateShared, so cudaMemcpyDefault finds out the direction.
    STOCH_CUDA(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.bytes()), cudaMemcpyDefault, target.stream));
    return;
  }
  // The copy is ordered on both devices: the source's stream starts the copy when the target's earlier work is done,
  // and the target's stream continues when the copy is done.
  DeviceGuard guard(from.device);
  target.RecordReady();
  STOCH_CUDA(cudaStreamWaitEvent(source.stream, target.ready()));
  CopyBetween(to.data, to.device, from.data, from.device, static_cast<size_t>(to.bytes()), source.stream);
  source.RecordReady();
  STOCH_CUDA(cudaStreamWaitEvent(target.stream, source.ready()));
}

void CudaBackend::Synchronize(Device device) {
  DeviceContext& ctx = At(device).context;
  DeviceGuard guard(device);
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
}

}  // namespace stoch::cuda
