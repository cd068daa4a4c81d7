// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/thread_pool.h"

#include <system_error>
#include <utility>

#include "kernels/base/check.h"

namespace stoch::cpu {
namespace {

// A decode step is some hundred short loops: a worker that slept after each would pay a futex wake-up (about 50 us)
// every time. Long enough to bridge the gaps between loops, short enough not to burn an idle machine.
constexpr int kSpins = 4000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

template <typename T>
void WaitWhile(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  STOCH_CHECK(threads >= 1);
  workers_.reserve(static_cast<size_t>(threads) - 1);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { WorkerMain(i); });
  } catch (const std::system_error&) {
    return;  // std::thread's answer to EAGAIN; the started ones wait for work, as they would anyway
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t count, const Body& body) {
  if (count <= 0) return;
  if (workers_.empty() || count == 1) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  body_ = &body;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  state_.store(uint64_t{generation} << 32 | kOpen, std::memory_order_release);
  generation_.store(generation, std::memory_order_release);
  generation_.notify_all();
  RunIterations(0);
  uint64_t state = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  for (; (state & kInside) != 0; state = state_.load(std::memory_order_acquire)) WaitWhile(state_, state);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::RunIterations(int thread) {
  try {
    for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
         i = next_.fetch_add(1, std::memory_order_relaxed)) {
      (*body_)(i, thread);
    }
  } catch (...) {
    next_.store(count_, std::memory_order_relaxed);
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

// Whether this worker is inside the loop of that generation now: not where it is over already.
bool ThreadPool::Enter(uint32_t generation) {
  uint64_t state = state_.load(std::memory_order_acquire);
  while (state >> 32 == generation && (state & kOpen) != 0) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      return true;
  }
  return false;
}

void ThreadPool::WorkerMain(int thread) {
  uint32_t seen = 0;
  for (;;) {
    WaitWhile(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!Enter(seen)) continue;
    RunIterations(thread);
    // The last access to this loop: after it the caller may start the next one.
    if ((state_.fetch_sub(1, std::memory_order_acq_rel) & (kOpen | kInside)) == 1) state_.notify_one();
  }
}

}  // namespace stoch::cpu
