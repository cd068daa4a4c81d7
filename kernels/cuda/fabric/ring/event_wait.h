// SPDX-License-Identifier: Apache-2.0
// The host's polling for events, with a time limit.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace stoch::cuda {

// Whether what comes before the event has happened. Errors: CudaError.
bool HasPassed(cudaEvent_t event);
// Waits for an event, `limit_ms` at most where that is not negative. False where the limit passes first.
bool WaitForEvent(cudaEvent_t event, int64_t limit_ms);

}  // namespace stoch::cuda
