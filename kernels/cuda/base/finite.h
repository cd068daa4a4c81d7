// SPDX-License-Identifier: Apache-2.0
// How kernels report NaN and infinity without stopping: the first site to meet one leaves its id.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace stoch::cuda {

struct FiniteReporter {
  int* flag = nullptr;  // device memory; 0 = nothing met
  int site = 0;         // >= 1

#if defined(__CUDACC__)
  // Call where a thread met a NaN or an infinity.
  __device__ void Report() const { atomicCAS(flag, 0, site); }
#endif
};

}  // namespace stoch::cuda
