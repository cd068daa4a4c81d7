// SPDX-License-Identifier: Apache-2.0
// Lets so many requests at a time into the threads of the API that one of them is left for requests that are already
// being answered. Internal to the HTTP front.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace stoch::serve {

// Threads: safe.
class HttpGate {
 public:
  explicit HttpGate(int places = 1) : free_(places) {}

  // Calls `start` at once, or when a place is free: whoever it starts calls Leave in the end. It returns false, and throws
  // nothing, if it has started nobody.
  void Enter(std::function<bool()> start) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      if (free_ == 0) {
        waiting_.push_back(std::move(start));
        return;
      }
      --free_;
    }
    if (!start()) Leave();
  }
  void Leave() {
    std::function<bool()> next;
    do {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) {
        ++free_;
        return;
      }
      next.swap(waiting_.front());
      waiting_.pop_front();
    } while (!next());
  }
  // Forgets who waits, and lets nobody in any more.
  void Close() {
    std::deque<std::function<bool()>> forgotten;
    const std::lock_guard lock(mutex_);
    closed_ = true;
    forgotten.swap(waiting_);
  }

 private:
  std::mutex mutex_;
  int free_;
  bool closed_ = false;
  std::deque<std::function<bool()>> waiting_;
};

}  // namespace stoch::serve
