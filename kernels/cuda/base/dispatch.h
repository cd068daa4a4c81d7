// SPDX-License-Identifier: Apache-2.0
// Maps a DType known at run time to a template argument.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"

namespace stoch::cuda {

template <typename T>
struct TypeTag {
  using Type = T;
};

// Calls f(TypeTag<T>) where T is the CUDA type that stores elements of `dtype`. Requires: a float dtype.
template <typename F>
void DispatchFloat(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF32: return f(TypeTag<float>());
    case DType::kF16: return f(TypeTag<__half>());
    case DType::kBF16: return f(TypeTag<__nv_bfloat16>());
    case DType::kU8:
    case DType::kI8:
    case DType::kI32:
    case DType::kI64: break;
  }
  STOCH_CHECK(false);
}

}  // namespace stoch::cuda
