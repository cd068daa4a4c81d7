// SPDX-License-Identifier: Apache-2.0
// A chunk of one row, quantized by one warp or by several.
#pragma once

#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/prologue/activations.h"

namespace stoch::cuda {

// A lane's share of it: elements lane, lane + 32, ... of its warp's share, one of kWarps.
template <int kWarps>
class ChunkOfRow {
 public:
  static constexpr int kMaxDims = 4 * kWarp;
  static constexpr int kEach = kMaxDims / kWarps / kWarp;

  // A chunk past the last has no elements.
  __device__ __forceinline__ ChunkOfRow(const RowSource& source, const ScDims& dims, int64_t row, int64_t chunk,
                                        int share, int lane)
      : prologue_(source.prologue), first_(share * kEach * kWarp + lane) {
    left_ = chunk < dims.chunks ? static_cast<int>(dims.chunk_dims(chunk)) - first_ : 0;
    const int64_t begin = chunk * dims.chunk_d + first_;
    x_at_ = source.x + row * source.x_stride + begin;
    if (prologue_ == Prologue::kRmsNorm) y_at_ = source.norm_weight + begin;
    if (prologue_ == Prologue::kSiluMul) y_at_ = source.x2 + row * source.x2_stride + begin;
  }

  // Loads that do not depend on earlier kernels.
  __device__ __forceinline__ void LoadNormWeights() {
    if (prologue_ != Prologue::kRmsNorm) return;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (k * kWarp < left_) y_[k] = y_at_[k * kWarp];
    }
  }
  __device__ __forceinline__ void Load() {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (k * kWarp >= left_) continue;
      x_[k] = x_at_[k * kWarp];
      if (prologue_ == Prologue::kSiluMul) y_[k] = y_at_[k * kWarp];
    }
  }

  // The bits of the largest absolute value of the share, in every lane.
  // Requires: all lanes of the warp, once; `r`: the row's norm factor (kRmsNorm).
  __device__ __forceinline__ uint32_t MaxAbsBits(float r) {
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      x_[k] = k * kWarp < left_ ? ApplyPrologue(prologue_, x_[k], y_[k], r) : 0.0f;
      most = max(most, FloatToBits(x_[k]) & 0x7fffffffu);
    }
    return __reduce_max_sync(kAllLanes, most);
  }
  // put(d, code) gets the codes of the lane's elements, 0 for those past the last. After MaxAbsBits.
  template <typename Put>
  __device__ __forceinline__ void Codes(const ScopeParams& params, const ScopeQuantizer& quantizer,
                                        const Put& put) const {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      put(first_ + k * kWarp, k * kWarp < left_ ? quantizer.Code(params, x_[k]) : uint8_t{0});
    }
  }

 private:
  Prologue prologue_;
  const float* x_at_;            // the lane's first element
  const float* y_at_ = nullptr;  // its norm weight or x2
  int first_;                    // where that is in the chunk
  int left_;                     // elements of the chunk from there on
  float x_[kEach] = {};
  float y_[kEach] = {};
};

}  // namespace stoch::cuda
