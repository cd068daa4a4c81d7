// SPDX-License-Identifier: Apache-2.0
// Parts of requests that wait for a process of their own (chats to be rendered, grammars to be checked), on one thread:
// threads that answer other requests never wait for them, and clients take turns.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "engine/request/fair_queue.h"

namespace stoch::serve {

// Threads: any.
class TaskQueue {
 public:
  static constexpr size_t kMaxWaiting = 256;
  static constexpr size_t kMaxWaitingOfClient = 128;

  // thread: its name, of at most 15 characters.
  explicit TaskQueue(const char* thread);
  ~TaskQueue() { Stop(); }

  // Runs `task`, which throws nothing, once it is the client's turn and this one's among the client's. False: too many wait,
  // or it has stopped.
  // Errors: std::bad_alloc, and nothing has changed.
  bool Add(const std::string& client, std::function<void()> task);
  // Drops what waits, after what runs. From then on Add is false.
  void Stop();

 private:
  void Run(const std::stop_token& stop);

  std::mutex mutex_;  // of what follows
  std::condition_variable_any added_;
  FairQueue queue_;
  std::unordered_map<uint64_t, std::function<void()>> waiting_;  // by id in the queue
  uint64_t next_id_ = 0;
  bool stopped_ = false;
  std::jthread thread_;
};

}  // namespace stoch::serve
