// SPDX-License-Identifier: Apache-2.0
// One scope's quantizer as kernels use it, for every code.
#pragma once

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/math/quantize.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cuda {

// Which rows share a scale: groups of `group` rows.
struct QuantizerParams {
  ScCode code = ScCode::kSignMagnitude;
  int q_max = 127;
  int64_t group = 1;  // rows of a scope
};

// The quantizer of one scope. Not finite: every code and the scale are 0.
struct ScopeQuantizer {
  float scale = 0;
  float zero = 0;
  bool finite = false;

  __device__ ScopeQuantizer(const QuantizerParams& params, const Extremes& e) {
    finite = e.max_abs_bits < 0x7f800000u;
    if (!finite) return;
    if (params.code == ScCode::kAsymmetric) {
      scale = UnipolarScale(e.min, e.max, params.q_max);
      zero = UnipolarZero(e.min, scale, params.q_max);
    } else {
      scale = BipolarScale(BitsToFloat(e.max_abs_bits), params.q_max);
    }
  }

  __device__ uint8_t Code(const QuantizerParams& params, float x) const {
    if (!finite) return 0;
    if (params.code == ScCode::kAsymmetric) return UnipolarCode(x, scale, zero, params.q_max);
    const int level = BipolarLevel(x, scale, params.q_max);
    return params.code == ScCode::kSignMagnitude ? SignMagnitude(level) : static_cast<uint8_t>(level + params.q_max);
  }
};

}  // namespace stoch::cuda
