// SPDX-License-Identifier: Apache-2.0
// Threads that stand for logical devices where these wait for each other.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace stoch::cpu {

// Threads: one caller at a time. Errors: std::system_error where the system gives no more threads.
class RankThreads {
 public:
  RankThreads() = default;
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // Runs body(0) ... body(ranks - 1), each on a thread of its own, and returns at once. `body` throws nothing.
  // Requires: what was started before was waited for.
  void Start(int ranks, std::function<void(int rank)> body);
  void Wait();

 private:
  void Main(int rank);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::thread> threads_;
  std::function<void(int)> body_;
  std::vector<bool> due_;  // per thread: has a body to run
  int running_ = 0;
  bool stop_ = false;
};

}  // namespace stoch::cpu
