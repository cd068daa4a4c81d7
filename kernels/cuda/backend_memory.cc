// SPDX-License-Identifier: Apache-2.0
// What CudaBackend knows of its devices' memory: what is free and taken, buffers, copies.
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
  // Code is loaded when a kernel is first launched, graphs come with batch sizes.
  constexpr int64_t kCodeBytes = int64_t{48} << 20;
  constexpr int64_t kGraphBytes = int64_t{16} << 20;
  static std::mutex mutex;
  static std::map<int, int64_t> contexts;  // made once a process, whatever number of backends follows
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
  constexpr int64_t kPage = int64_t{2} << 20;  // of cudaMalloc; smaller buffers share one
  return bytes < kPage / 2 ? bytes : (bytes + kPage - 1) / kPage * kPage;
}

Buffer CudaBackend::AllocateShared(Device device, int64_t bytes) {
  (void)At(device);  // one of ours
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
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));  // the caller may reuse its memory
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
    // Either may be memory of AllocateShared.
    STOCH_CUDA(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(to.bytes()), cudaMemcpyDefault, target.stream));
    return;
  }
  // The copy is an op of both devices: the source's stream runs it once the target is ready to be written, and the
  // target goes on once it is done.
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
