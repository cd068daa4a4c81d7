// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/pinned_upload.h"

#include <cstring>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"

namespace stoch::cuda {

PinnedUpload::PinnedUpload(DeviceContext& ctx, size_t bytes) : ctx_(ctx) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i] = AllocatePinned(bytes);
    std::memset(blocks_[i].data(), 0, bytes);
    STOCH_CUDA(cudaEventCreateWithFlags(&copied_[i], cudaEventDisableTiming));
  }
}

PinnedUpload::~PinnedUpload() {
  for (cudaEvent_t event : copied_) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
}

const Buffer& PinnedUpload::Next() {
  slot_ = (slot_ + 1) % blocks_.size();
  STOCH_CUDA(cudaEventSynchronize(copied_[slot_]));  // returns at once if the block was never used
  return blocks_[slot_];
}

void PinnedUpload::CopyTo(void* device, size_t bytes) {
  STOCH_CUDA(cudaMemcpyAsync(device, blocks_[slot_].data(), bytes, cudaMemcpyHostToDevice, ctx_.stream));
  STOCH_CUDA(cudaEventRecord(copied_[slot_], ctx_.stream));
}

}  // namespace stoch::cuda
