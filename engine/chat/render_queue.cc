// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/render_queue.h"

#include <pthread.h>

#include <utility>

namespace stoch {

constexpr size_t kMaxWaiting = 256;

RenderQueue::RenderQueue() : thread_([this](const std::stop_token& stop) { Run(stop); }) {}

bool RenderQueue::Add(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMaxWaiting) return false;
    waiting_.push_back(std::move(task));
  }
  added_.notify_one();
  return true;
}

void RenderQueue::Run(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "render");
  std::unique_lock lock(mutex_);
  while (added_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
    if (stop.stop_requested()) return;
    const std::function<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace stoch
