// A chunk of one row, quantized by one warp.
#pragma once

#include "kernels/cuda/activations.h"
#include "kernels/cuda/quantizer.cuh"

namespace stoch::cuda {

// What a lane holds of it: elements lane, lane + 32, ...
class ChunkOfRow {
 public:
  static constexpr int kEach = 4;
  static constexpr int kMaxDims = kEach * kWarp;

  // A chunk past the last has no elements.
  __device__ __forceinline__ ChunkOfRow(const RowSource& source, const ScDims& dims, int64_t row, int64_t chunk,
                                        int lane)
      : prologue_(source.prologue),
        left_(chunk < dims.chunks ? static_cast<int>(dims.chunk_dims(chunk)) - lane : 0),
        lane_(lane) {
    const int64_t begin = chunk * dims.chunk_d + lane;
    x_at_ = source.x + row * source.x_stride + begin;
    if (prologue_ == Prologue::kRmsNorm) y_at_ = source.norm_weight + begin;
    if (prologue_ == Prologue::kSiluMul) y_at_ = source.x2 + row * source.x2_stride + begin;
  }

  // What does not depend on earlier kernels.
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

  // What:     the scope's quantizer, given to every lane; put(d, code) gets the codes of the lane's elements, 0 for
  //           those past the last.
  // Requires: all lanes of the warp; `r`: the row's norm factor (kRmsNorm).
  template <typename Put>
  __device__ __forceinline__ ScopeQuantizer Quantize(const QuantizerParams& params, float r, const Put& put) {
    Extremes e;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      x_[k] = k * kWarp < left_ ? ApplyPrologue(prologue_, x_[k], y_[k], r) : 0.0f;
      e.max_abs_bits = max(e.max_abs_bits, FloatToBits(x_[k]) & 0x7fffffffu);
    }
    e.max_abs_bits = __reduce_max_sync(kAllLanes, e.max_abs_bits);
    const ScopeQuantizer quantizer(params, e);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      put(lane_ + k * kWarp, k * kWarp < left_ ? quantizer.Code(params, x_[k]) : uint8_t{0});
    }
    return quantizer;
  }

 private:
  Prologue prologue_;
  const float* x_at_;            // the lane's first element
  const float* y_at_ = nullptr;  // its norm weight or x2
  int left_;                     // elements of the chunk from there on
  int lane_;
  float x_[kEach] = {};
  float y_[kEach] = {};
};

}  // namespace stoch::cuda
