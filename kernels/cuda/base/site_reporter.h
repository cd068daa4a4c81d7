// SPDX-License-Identifier: Apache-2.0
// How kernels speak of the op that they are of: that it begins, and that it met a NaN or an infinity.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace stoch::cuda {

struct SiteReporter {
  int* flag = nullptr;   // device memory; 0 = nothing met
  int* begun = nullptr;  // memory of the host (SiteTable): the site that began last
  int site = 0;          // >= 1

#if defined(__CUDACC__)
  // Call where a thread met a NaN or an infinity: the first site to do so leaves its id.
  __device__ void Report() const { atomicCAS(flag, 0, site); }

  // Call with all threads of an op's first kernel as soon as the kernels ahead have finished (WaitForPrevious). One
  // thread stores, and nobody waits for it.
  __device__ __forceinline__ void Begin() const {
    if ((blockIdx.x | blockIdx.y | blockIdx.z | threadIdx.x) == 0) *static_cast<volatile int*>(begun) = site;
  }
#endif
};

}  // namespace stoch::cuda
