// SPDX-License-Identifier: Apache-2.0
// How a kernel reports about its op (the site: layer and op name): that the op has begun, and that a value is NaN or
// infinite.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace stoch::cuda {

struct SiteReporter {
  int* flag = nullptr;   // device memory; site of the first NaN or infinity, 0 = none
  int* begun = nullptr;  // pinned host memory (SiteTable): site of the op that began last
  int site = 0;          // number of this kernel's op in SiteTable, >= 1

#if defined(__CUDACC__)
  // Called by any thread that meets a NaN or an infinity. The first report since `flag` was zeroed is kept.
  __device__ void Report() const { atomicCAS(flag, 0, site); }

  // Called by all threads of an op's first kernel right after WaitForPrevious. Thread 0 of block 0 stores the site; no
  // thread waits for the store.
  __device__ __forceinline__ void Begin() const {
    if ((blockIdx.x | blockIdx.y | blockIdx.z | threadIdx.x) == 0) *static_cast<volatile int*>(begun) = site;
  }
#endif
};

}  // namespace stoch::cuda
