// SPDX-License-Identifier: Apache-2.0
// The reference: what every variant computes, as plainly as it can be said.
#include <cstring>

#include "kernels/cpu/simd/gate_sums.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/math/elementary.h"
#include "kernels/math/fixed_point.h"
#include "kernels/math/half.h"
#include "kernels/math/quantize.h"
#include "kernels/math/random.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu {
namespace {

int SignedCount(const ScOperator& op, int64_t dim, uint8_t a, uint8_t b) {
  const int mask = static_cast<int>(dim & (op.masks - 1));
  if (op.code != ScCode::kSignMagnitude) return op.count(mask, a, b);
  const int count = op.count(mask, a & 0x7f, b & 0x7f);
  return ((a ^ b) & 0x80) != 0 ? -count : count;
}

// Codes q + Q whose table is the exact product: multiplies.
void ProductBlock(const ScOperator& op, const ScLeft& left, int64_t dims, const uint8_t* block, int32_t* acc) {
  for (int r = 0; r < kBlockRows; ++r) acc[r] = 0;
  for (int64_t i = 0; i < dims; ++i) {
    const int a = left.codes[i] - op.q_max;
    const uint8_t* b = block + i * kBlockRows;
    for (int r = 0; r < kBlockRows; ++r) acc[r] += a * (b[r] - op.q_max);
  }
}

void ScBlock(const ScTable& table, const ScLeft* left, int64_t num_left, int64_t first_dim, int64_t dims,
             const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc) {
  for (int64_t t = 0; t < num_left; ++t) {
    for (int64_t b = 0; b < num_blocks; ++b, acc += kBlockRows) {
      const uint8_t* block = blocks + b * block_stride;
      if (table.op->is_int_product) {
        ProductBlock(*table.op, left[t], dims, block, acc);
        continue;
      }
      for (int r = 0; r < kBlockRows; ++r) {
        int32_t sum = 0;
        for (int64_t i = 0; i < dims; ++i) {
          const int64_t dim = left[t].positions == nullptr ? first_dim + i : left[t].positions[i];
          sum += SignedCount(*table.op, dim, left[t].codes[i], block[i * kBlockRows + r]);
        }
        acc[r] = sum;
      }
    }
  }
}

struct OneBlock {
  static constexpr int kBlocks = 1;
  using Planes = uint64_t __attribute__((vector_size(16)));
  static Planes Swap(const Planes& x) { return __builtin_shufflevector(x, x, 1, 0); }
};
void SumByGates(const GateCall& call) { GateSums<OneBlock>::Sum(call); }

void ScDequantize(const int32_t* acc, float gain, float scale_a, const float* scale_b, float* y) {
  for (int r = 0; r < kBlockRows; ++r) y[r] = y[r] + BipolarProduct(acc[r], gain, scale_a, scale_b[r]);
}

uint32_t MaxAbsBits(const float* x, int64_t n) {
  uint32_t max = 0;  // magnitudes order like their bits, and every NaN lies above infinity
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = FloatToBits(x[i]) & 0x7fffffffu;
    if (bits > max) max = bits;
  }
  return max;
}

void Quantize(const float* x, int64_t n, float scale, int q_max, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = SignMagnitude(BipolarLevel(x[i], scale, q_max));
}

float LoadElement(const void* data, DType dtype, int64_t index) {
  const char* address = static_cast<const char*>(data) + index * static_cast<int64_t>(DTypeSize(dtype));
  if (dtype == DType::kF32) {
    float value;
    memcpy(&value, address, sizeof(value));
    return value;
  }
  uint16_t half;
  memcpy(&half, address, sizeof(half));
  return dtype == DType::kF16 ? F16ToFloat(half) : Bf16ToFloat(half);
}

void Load(const void* source, DType dtype, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = LoadElement(source, dtype, i);
}

void DotRows(const float* x, int64_t x_stride, int64_t num_x, const ExactRows& w, int64_t num_w, int64_t cols,
             float* out, int64_t out_stride, bool add) {
  for (int64_t t = 0; t < num_x; ++t) {
    for (int64_t r = 0; r < num_w; ++r) {
      float lanes[kDotLanes] = {};
      for (int64_t i = 0; i < cols; ++i) {
        float& lane = lanes[i % kDotLanes];
        lane = Fma(x[t * x_stride + i], LoadElement(w.data, w.dtype, r * w.stride + i), lane);
      }
      const float dot = FoldLanes<kDotLanes>(lanes);
      float& y = out[t * out_stride + r];
      y = add ? y + dot : dot;
    }
  }
}

void WeightedSum(const float* p, int64_t n, const float* const* v, int64_t dims, float* out) {
  for (int64_t d = 0; d < dims; ++d) {
    float lanes[kDotLanes] = {};
    for (int64_t t = 0; t < n; ++t) lanes[t % kDotLanes] = Fma(p[t], v[t][d], lanes[t % kDotLanes]);
    out[d] = FoldLanes<kDotLanes>(lanes);
  }
}

float SumSquares(const float* x, int64_t n) {
  float lanes[kRowLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % kRowLanes] = Fma(x[i], x[i], lanes[i % kRowLanes]);
  return FoldLanes<kRowLanes>(lanes);
}

float ExpSum(const float* x, int64_t n, float shift, float* e) {
  float lanes[kRowLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    const float value = Exp(x[i] - shift);
    if (e != nullptr) e[i] = value;
    lanes[i % kRowLanes] = lanes[i % kRowLanes] + value;
  }
  return FoldLanes<kRowLanes>(lanes);
}

double Divergence(const float* base, const LogSum& base_of, const float* x, const LogSum& of, int64_t n) {
  double lanes[kRowLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    double& lane = lanes[i % kRowLanes];
    lane = lane + DivergenceTerm(base_of.LogProb(base[i]), of.LogProb(x[i]));
  }
  return FoldLanes<kRowLanes>(lanes);
}

void SiluMul(const float* x, const float* x2, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Silu(x[i]) * x2[i];
}

void Random(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, float stddev, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = RandomWeight(seed, stream, first + static_cast<uint64_t>(i), stddev);
}

void FixedConvert(const void* row, DType dtype, int64_t n, float scale, int16_t* q) {
  for (int64_t i = 0; i < n; ++i) q[i] = static_cast<int16_t>(FixedInteger(LoadElement(row, dtype, i), scale));
  for (int64_t i = n; i % FixedLoops::kPad != 0; ++i) q[i] = 0;
}

int64_t FixedElement(const FixedRows& x, int64_t row, int64_t i) {
  return x.high[row * x.stride + i] * FixedLoops::kDigit + x.low[row * x.stride + i];
}

void FixedDots(const FixedRows& x, int64_t num_x, const int16_t* q, int64_t q_stride, int64_t num_w, int64_t cols,
               const void* /*next*/, int64_t* sums, int64_t sums_stride) {
  for (int64_t t = 0; t < num_x; ++t) {
    for (int64_t r = 0; r < num_w; ++r) {
      int64_t sum = 0;
      for (int64_t i = 0; i < cols; ++i) sum += FixedElement(x, t, i) * q[r * q_stride + i];
      sums[t * sums_stride + r] = sum;
    }
  }
}

void FixedStored(const FixedRows& x, int64_t num_x, const ExactRows& w, const float* scales, int64_t num_w,
                 int64_t cols, int64_t* sums, int64_t sums_stride) {
  for (int64_t r = 0; r < num_w; ++r) {
    for (int64_t t = 0; t < num_x; ++t) {
      int64_t sum = 0;
      for (int64_t i = 0; i < cols; ++i) {
        const int64_t at = r * w.stride + i;
        const int32_t q = w.dtype == DType::kI8 ? static_cast<const int8_t*>(w.data)[at]
                                                : FixedInteger(LoadElement(w.data, w.dtype, at), scales[r]);
        sum += FixedElement(x, t, i) * q;
      }
      sums[t * sums_stride + r] = sum;
    }
  }
}

constexpr FixedLoops kFixed = {FixedConvert, FixedDots, FixedStored, 1};

}  // namespace

const Simd& ScalarSimd() {
  static constexpr Simd kSimd = {"scalar",   ScBlock, SumByGates,  ScDequantize, MaxAbsBits,
                                 Quantize,   DotRows, WeightedSum, SumSquares,   ExpSum,
                                 Divergence, SiluMul, Load,        Random,       &kFixed};
  return kSimd;
}

}  // namespace stoch::cpu
