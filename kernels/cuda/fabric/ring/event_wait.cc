// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/ring/event_wait.h"

#include <chrono>
#include <thread>

#include "kernels/cuda/base/cuda_check.h"

namespace stoch::cuda {

bool HasPassed(cudaEvent_t event) {
  const cudaError_t code = cudaEventQuery(event);
  if (code == cudaErrorNotReady) return false;
  STOCH_CUDA(code);
  return true;
}

bool WaitForEvent(cudaEvent_t event, int64_t limit_ms) {
  constexpr int kSpins = 200;
  constexpr auto kNap = std::chrono::microseconds(20);
  const auto begin = std::chrono::steady_clock::now();
  for (int turn = 0; !HasPassed(event); ++turn) {
    if (limit_ms >= 0 && std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(limit_ms)) return false;
    if (turn >= kSpins) std::this_thread::sleep_for(kNap);
  }
  return true;
}

}  // namespace stoch::cuda
