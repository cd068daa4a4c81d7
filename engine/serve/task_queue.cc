// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/task_queue.h"

#include <pthread.h>

#include <utility>

namespace stoch::serve {

TaskQueue::TaskQueue(const char* thread) : thread_([this](const std::stop_token& stop) { Run(stop); }) {
  pthread_setname_np(thread_.native_handle(), thread);
}

bool TaskQueue::Add(const std::string& client, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || waiting_.size() >= kMaxWaiting || queue_.size_of(client) >= kMaxWaitingOfClient) return false;
    const auto added = waiting_.emplace(next_id_++, std::move(task)).first;
    try {
      queue_.Add(added->first, client);
    } catch (...) {
      waiting_.erase(added);
      throw;
    }
  }
  added_.notify_one();
  return true;
}

void TaskQueue::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
  queue_.Clear();
  waiting_.clear();
}

void TaskQueue::Run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (added_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
    if (stop.stop_requested()) return;
    const auto next = waiting_.find(queue_.Next().value());
    const std::function<void()> task = std::move(next->second);
    queue_.Remove(next->first);
    waiting_.erase(next);
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace stoch::serve
