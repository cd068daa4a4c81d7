// SPDX-License-Identifier: Apache-2.0
// Polling for CUDA events by the host, with a time limit.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace stoch::cuda {

// Whether all work before the event has ended. Errors: CudaError.
bool HasPassed(cudaEvent_t event);
// Polls until the event has passed, and returns true. If limit_ms is not negative, gives up after limit_ms milliseconds
// and returns false.
bool WaitForEvent(cudaEvent_t event, int64_t limit_ms);

}  // namespace stoch::cuda
