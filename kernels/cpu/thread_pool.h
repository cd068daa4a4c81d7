// SPDX-License-Identifier: Apache-2.0
// A small pool of threads for loops whose iterations write disjoint memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace stoch::cpu {

// ParallelFor(n, body) calls body(i, thread) once for every i in [0, n), on the caller and on up to size() - 1 workers, and
// returns when all are done. It waits for workers that have begun, not for ones that the system has not run yet: on a busy
// machine the caller does the work alone. `thread` is in [0, size()) and no two calls that run at the same time share it, so it may
// index scratch memory.
// Bits:    which thread takes which i is not defined; bodies must not let it matter.
// Errors:  the first exception of a body is rethrown by ParallelFor after every iteration ended or was skipped.
// Threads: one caller at a time; bodies must not call ParallelFor of the same pool.
class ThreadPool {
 public:
  // `threads` >= 1, the caller included. Where the system does not start that many (a limit of processes or memory),
  // the pool has those it did start: size() says how many.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  using Body = std::function<void(int64_t index, int thread)>;
  void ParallelFor(int64_t count, const Body& body);

 private:
  static constexpr uint64_t kOpen = uint64_t{1} << 31;
  static constexpr uint64_t kInside = kOpen - 1;

  bool Enter(uint32_t generation);
  void WorkerMain(int thread);
  void RunIterations(int thread);

  std::vector<std::thread> workers_;
  // The current loop. Written by the caller while no worker is inside a loop, read by workers inside one.
  const Body* body_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<uint32_t> generation_{0};  // number of the current loop; a change is a new loop, or the end
  // The generation of the loop in the upper half, kOpen while workers may enter it, and how many are inside.
  std::atomic<uint64_t> state_{0};
  std::atomic<bool> stop_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

// Lowers `value` to `candidate` if that is smaller: the first of many findings, whoever makes them.
inline void AtomicMin(std::atomic<int64_t>& value, int64_t candidate) {
  int64_t seen = value.load(std::memory_order_relaxed);
  while (candidate < seen && !value.compare_exchange_weak(seen, candidate, std::memory_order_relaxed)) {
  }
}

}  // namespace stoch::cpu
