// SPDX-License-Identifier: Apache-2.0
// Loops over host memory on a few threads that live as long as the loop.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace stoch {

// Calls body(i) once for every i in [0, count), on the caller and on up to threads - 1 others; fewer where the system
// starts no more. For bodies that take longer than a thread takes to start.
// Bits:   which thread takes which i is not defined; bodies must not let it matter.
// Errors: the first exception of a body is rethrown, once every thread has ended.
template <typename Body>
void ParallelFor(int64_t count, int threads, const Body& body) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  try {
    for (int64_t i = 1; i < std::min<int64_t>(threads, count); ++i) others.emplace_back(work);
  } catch (const std::system_error&) {
    // The threads that did start, and this one, do all of it.
  }
  work();
  for (std::thread& thread : others) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace stoch
