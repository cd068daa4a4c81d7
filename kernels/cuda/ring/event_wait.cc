// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/ring/event_wait.h"

#include <chrono>
#include <thread>

#include "kernels/cuda/base/cuda_check.h"

namespace stoch::cuda {
namespace {

bool HasEnded(cudaError_t code) {
  if (code == cudaErrorNotReady) return false;
  STOCH_CUDA(code);
  return true;
}

template <typename F>
bool PollFor(int64_t limit_ms, const F& has_ended) {
  constexpr int kSpins = 200;
  constexpr auto kNap = std::chrono::microseconds(20);
  const auto begin = std::chrono::steady_clock::now();
  for (int turn = 0; !has_ended(); ++turn) {
    if (limit_ms >= 0 && std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(limit_ms)) return false;
    if (turn >= kSpins) std::this_thread::sleep_for(kNap);
  }
  return true;
}

}  // namespace

bool HasPassed(cudaEvent_t event) { return HasEnded(cudaEventQuery(event)); }

bool WaitForEvent(cudaEvent_t event, int64_t limit_ms) {
  return PollFor(limit_ms, [event] { return HasPassed(event); });
}

bool WaitForStream(cudaStream_t stream, int64_t limit_ms) {
  return PollFor(limit_ms, [stream] { return HasEnded(cudaStreamQuery(stream)); });
}

}  // namespace stoch::cuda
