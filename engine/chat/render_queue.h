// SPDX-License-Identifier: Apache-2.0
// Conversations that wait for the one process that renders them, on a thread of their own: threads that answer other
// requests never wait for a chat template.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace stoch {

// Threads: any.
class RenderQueue {
 public:
  RenderQueue();
  // Drops what waits, and waits for what runs.
  ~RenderQueue() = default;

  // Runs `task`, which throws nothing, after those before it. False: too many wait.
  bool Add(std::function<void()> task);

 private:
  void Run(const std::stop_token& stop);

  std::mutex mutex_;  // of what follows
  std::condition_variable_any added_;
  std::deque<std::function<void()>> waiting_;
  std::jthread thread_;
};

}  // namespace stoch
