// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/ring/nccl_hops.h"

#include <set>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/base/ordinal.h"
#include "kernels/cuda/comm/device_group.h"
#include "kernels/cuda/ring/event_wait.h"
#include "kernels/ring.h"

namespace stoch::cuda {
namespace {

constexpr size_t kTrialBytes = size_t{64} << 10;

}  // namespace

std::vector<int> NcclHops::Ordinals() const {
  std::vector<int> ordinals;
  for (const DeviceContext* ctx : contexts_) ordinals.push_back(OrdinalOf(ctx->device.index));
  return ordinals;
}

std::string NcclHops::Problem() {
  const std::vector<int> ordinals = Ordinals();
  if (std::set<int>(ordinals.begin(), ordinals.end()).size() < ordinals.size()) return "NCCL takes no GPU twice";
  // The host would wait for a kernel that waits for one on another GPU, which the host has yet to launch.
  if (LaunchesBlock()) return "NCCL does not run under CUDA_LAUNCH_BLOCKING=1";
  if (ProbeNccl().version == 0) return "no NCCL: " + ProbeNccl().problem;
  try {
    Connect();
  } catch (const DeviceError& error) {
    return error.what();
  } catch (const OutOfMemory& error) {
    return error.what();
  }
  return {};
}

void NcclHops::Connect() {
  if (group_ != nullptr) return;
  // Kernels with a barrier of their grid may be on their way.
  for (const DeviceContext* ctx : contexts_) (void)WaitForStream(ctx->stream, -1);
  std::vector<Buffer> memory;
  for (size_t i = 0; i < contexts_.size(); ++i) {
    const DeviceGuard guard(device(i));
    memory.push_back(AllocateDevice(device(i), 2 * kTrialBytes));
  }
  group_ = std::make_unique<NcclGroup>(Ordinals());
  try {
    TryOut(memory);
  } catch (...) {
    (void)Abort();  // before the memory is freed, which waits for the device
    throw;
  }
}

// The first hop between two devices also connects them, for which the host needs both ends. Hops after it are enqueued
// and no more, whatever other devices do.
void NcclHops::TryOut(const std::vector<Buffer>& memory) {
  const size_t count = contexts_.size();
  std::vector<const uint8_t*> from;
  std::vector<uint8_t*> to;
  for (size_t i = 0; i < count; ++i) {
    const DeviceGuard guard(device(i));
    auto* own = static_cast<uint8_t*>(memory[i].data());
    STOCH_CUDA(cudaMemsetAsync(own, static_cast<int>(i) + 1, kTrialBytes, streams_[i]));
    STOCH_CUDA(cudaMemsetAsync(own + kTrialBytes, 0, kTrialBytes, streams_[i]));
    from.push_back(own);
    to.push_back(own + kTrialBytes);
  }
  group_->SendToNext(from, to, kTrialBytes, streams_);
  for (size_t i = 0; i < count; ++i) {
    const size_t sender = (i + count - 1) % count;
    const std::string way = " from " + DeviceName(device(sender)) + " to " + DeviceName(device(i));
    if (!WaitForStream(streams_[i], RingProbe::kRingLimitMs)) {
      throw NcclError("NCCL brought nothing" + way + " within " + std::to_string(RingProbe::kRingLimitMs) + " ms");
    }
    const DeviceGuard guard(device(i));
    std::vector<uint8_t> arrived(kTrialBytes);
    STOCH_CUDA(cudaMemcpyAsync(arrived.data(), to[i], kTrialBytes, cudaMemcpyDeviceToHost, streams_[i]));
    STOCH_CUDA(cudaStreamSynchronize(streams_[i]));
    if (arrived != std::vector<uint8_t>(kTrialBytes, static_cast<uint8_t>(sender + 1))) {
      throw NcclError("NCCL brought other bytes" + way);
    }
  }
}

void NcclHops::Send(std::span<const uint8_t* const> from, std::span<uint8_t* const> to, size_t bytes) {
  try {
    group_->SendToNext(from, to, bytes, streams_);
  } catch (const NcclError&) {
    (void)Abort();
    throw;
  }
}

std::string NcclHops::Abort() {
  if (group_ == nullptr) return {};
  std::string failure;
  try {
    group_->Check();
  } catch (const NcclError& error) {
    failure = error.what();
  }
  group_->Abort();
  group_.reset();
  return failure;
}

}  // namespace stoch::cuda
