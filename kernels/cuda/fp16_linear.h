// The fp16 baseline: half weights and activations, fp32 sums, through cuBLAS. Outside the bit-identity promise.
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/cuda/sc_layout.h"
#include "kernels/cuda/weights.h"

namespace stoch::cuda {

// What: y = x @ w^T. Shapes: x F16 [rows, w.cols], y F32.
void LaunchFp16Linear(DeviceContext& ctx, const uint16_t* x, int64_t rows, const HalfWeightView& w,
                      const LinearOutput& out);

}  // namespace stoch::cuda
