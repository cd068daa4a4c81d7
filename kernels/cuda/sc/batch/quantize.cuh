// SPDX-License-Identifier: Apache-2.0
// Device code that quantizes one chunk of one row of f(x), by one warp or by several.
#pragma once

#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/prologue/activations.h"

namespace stoch::cuda {

// One lane's elements of a chunk that kWarps warps quantize together. Each warp has a contiguous share of the chunk, of
// which a lane has elements lane, lane + 32, and so on.
template <int kWarps>
class ChunkOfRow {
 public:
  static constexpr int kMaxDims = 4 * kWarp;               // dimensions of a chunk, at most
  static constexpr int kEach = kMaxDims / kWarps / kWarp;  // elements of a lane

  // `share` is the index of the warp among kWarps. A chunk number past the last is allowed and has no elements.
  __device__ __forceinline__ ChunkOfRow(const RowSource& source, const ScDims& dims, int64_t row, int64_t chunk,
                                        int share, int lane)
      : prologue_(source.prologue), first_(share * kEach * kWarp + lane) {
    left_ = chunk < dims.chunks ? static_cast<int>(dims.chunk_dims(chunk)) - first_ : 0;
    const int64_t begin = chunk * dims.chunk_d + first_;
    x_at_ = source.x + row * source.x_stride + begin;
    if (prologue_ == Prologue::kRmsNorm) y_at_ = source.norm_weight + begin;
    if (prologue_ == Prologue::kSiluMul) y_at_ = source.x2 + row * source.x2_stride + begin;
  }

  // Loads the norm weights of RMSNorm, which depend on no earlier kernel.
  __device__ __forceinline__ void LoadNormWeights() {
    if (prologue_ != Prologue::kRmsNorm) return;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (k * kWarp < left_) y_[k] = y_at_[k * kWarp];
    }
  }
  // Loads x, and x2 of a SiLU product. Requires: WaitForPrevious.
  __device__ __forceinline__ void Load() {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (k * kWarp >= left_) continue;
      x_[k] = x_at_[k * kWarp];
      if (prologue_ == Prologue::kSiluMul) y_[k] = y_at_[k * kWarp];
    }
  }

  // Replaces x by f(x) and returns the bits of the largest |f(x)| of the warp's share, in every lane. `r` is the row's
  // RMSNorm factor (1 / rms); other prologues ignore it.
  // Requires: called once, by all lanes of the warp, after Load and, for RMSNorm, LoadNormWeights.
  __device__ __forceinline__ uint32_t MaxAbsBits(float r) {
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      x_[k] = k * kWarp < left_ ? ApplyPrologue(prologue_, x_[k], y_[k], r) : 0.0f;
      most = max(most, FloatToBits(x_[k]) & 0x7fffffffu);
    }
    return __reduce_max_sync(kAllLanes, most);
  }
  // Calls put(d, code) for each of the lane's elements, d being the dimension in the chunk; code 0 past the chunk's
  // end. Requires: called after MaxAbsBits.
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
  const float* x_at_;            // address of x of the lane's first element
  const float* y_at_ = nullptr;  // address of the first element's norm weight or x2; null: neither
  int first_;                    // dimension in the chunk of the lane's first element
  int left_;                     // dimensions from first_ to the chunk's end; <= 0: the lane has no element
  float x_[kEach] = {};          // x; MaxAbsBits replaces it by f(x), x after the prologue
  float y_[kEach] = {};          // norm weights or x2
};

}  // namespace stoch::cuda
