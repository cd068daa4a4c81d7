// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rank_threads.h"

#include <utility>

namespace stoch::cpu {

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::Start(int ranks, std::function<void(int rank)> body) {
  const std::lock_guard lock(mutex_);
  while (static_cast<int>(threads_.size()) < ranks) {
    due_.push_back(false);
    threads_.emplace_back(&RankThreads::Main, this, static_cast<int>(threads_.size()));
  }
  body_ = std::move(body);
  for (int rank = 0; rank < ranks; ++rank) due_[static_cast<size_t>(rank)] = true;
  running_ = ranks;
  changed_.notify_all();
}

void RankThreads::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ == 0; });
}

void RankThreads::Main(int rank) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || due_[static_cast<size_t>(rank)]; });
    if (stop_) return;
    due_[static_cast<size_t>(rank)] = false;
    lock.unlock();
    body_(rank);
    lock.lock();
    if (--running_ == 0) changed_.notify_all();
  }
}

}  // namespace stoch::cpu
