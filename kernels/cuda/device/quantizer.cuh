// SPDX-License-Identifier: Apache-2.0
// The quantizer of one scope (the numbers that share a scale) as kernels use it, for every kind of code.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/math/number_formats.h"
#include "kernels/math/quantize.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

struct ScopeParams {
  ScCode code = ScCode::kSignMagnitude;
  int q_max = 127;
  float floor = kScaleFloor;
};

// The quantizer of one scope. If a number of the scope is NaN or infinite, `finite` is false and the scale and all
// codes are 0.
struct ScopeQuantizer {
  float scale = 0;
  float zero = 0;
  bool finite = false;

  __device__ ScopeQuantizer(const ScopeParams& params, const Extremes& e) {
    finite = e.max_abs_bits < 0x7f800000u;
    if (!finite) return;
    if (params.code == ScCode::kAsymmetric) {
      scale = UnipolarScale(e.min, e.max, params.q_max);
      zero = UnipolarZero(e.min, scale, params.q_max);
    } else {
      scale = BipolarScale(BitsToFloat(e.max_abs_bits), params.q_max, params.floor);
    }
  }

  __device__ uint8_t Code(const ScopeParams& params, float x) const {
    if (!finite) return 0;
    if (params.code == ScCode::kAsymmetric) return UnipolarCode(x, scale, zero, params.q_max);
    const int level = BipolarLevel(x, scale, params.q_max);
    return params.code == ScCode::kSignMagnitude ? SignMagnitude(level) : static_cast<uint8_t>(level + params.q_max);
  }
};

// The scale of a scope whose codes are small floats (FP8, MX; kernels/math/number_formats.h). max_abs: largest
// magnitude.
__device__ inline float FormatScale(ScArith arith, float max_abs) {
  return arith == ScArith::kFp8E4m3 ? E4m3Scale(max_abs) : MxScale(max_abs);
}

// The quantizer of one scope for any ScArith: SC codes, or FP8 and MX codes.
struct PlainScope : ScopeQuantizer {
  ScArith arith;

  __device__ PlainScope(const ScopeParams& params, ScArith of, const Extremes& e)
      : ScopeQuantizer(params, e), arith(of) {
    if (finite && IsNumberFormat(arith)) scale = FormatScale(arith, BitsToFloat(e.max_abs_bits));
  }
  __device__ uint8_t Code(const ScopeParams& params, float x) const {
    if (arith != ScArith::kFp8E4m3) return ScopeQuantizer::Code(params, x);
    return finite ? E4m3Code(x / scale) : uint8_t{0};
  }
};

// The extremes over the group of rows that contains `row`; groups are rows 0 .. group - 1, group .. 2 * group - 1, ...
// Called by a warp; every lane gets the result. of_rows: [rows], the extremes of each row.
__device__ inline Extremes GroupExtremes(const Extremes* of_rows, int64_t row, int64_t rows, int64_t group, int lane) {
  const int64_t first = row / group * group;
  const int64_t count = group < rows - first ? group : rows - first;
  Extremes e = of_rows[first + (lane < count ? lane : 0)];
  for (int64_t i = lane + kWarp; i < count; i += kWarp) e = Merge(e, of_rows[first + i]);
  return WarpExtremes(e);
}

}  // namespace stoch::cuda
