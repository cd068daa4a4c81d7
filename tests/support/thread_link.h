// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process, their messages in queues.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "models/decoder/rank_link.h"

namespace stoch::test {

class ThreadLinks {
 public:
  // Sees, and may change, each message in transit; false: it is lost. `index` counts those from one rank to another.
  using OnMessage = std::function<bool(int from, int to, int index, std::vector<std::byte>& message)>;

  explicit ThreadLinks(int count, std::chrono::milliseconds limit = std::chrono::seconds(60),
                       std::chrono::milliseconds idle_limit = std::chrono::seconds(60))
      : limit_(limit), idle_limit_(idle_limit) {
    for (int rank = 0; rank < count; ++rank) links_.push_back(std::make_unique<Link>(this, rank, count));
  }
  RankLink& link(int rank) { return *links_[static_cast<size_t>(rank)]; }
  void Change(OnMessage on_message) {
    const std::lock_guard lock(mutex_);
    on_message_ = std::move(on_message);
  }
  // Messages so far from one rank to another.
  int Sent(int from, int to) {
    const std::lock_guard lock(mutex_);
    return ways_[{from, to}].sent;
  }
  // Whoever waits, or will, learns that its rank is gone: for the end of a test whose ranks are out of step.
  void Break() {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
    changed_.notify_all();
  }

 private:
  struct Way {
    std::deque<std::vector<std::byte>> messages;
    int sent = 0;
  };

  class Link final : public RankLink {
   public:
    Link(ThreadLinks* all, int rank, int count) : all_(*all), rank_(rank), count_(count), limit_(all->limit_) {}
    int rank() const override { return rank_; }
    int count() const override { return count_; }
    void Send(int to, std::span<const std::byte> message) override { all_.Send(rank_, to, message); }
    std::chrono::milliseconds limit(Wait wait) const override {
      return wait == Wait::kIdle ? all_.idle_limit_ : limit_;
    }
    void LimitRows(std::chrono::milliseconds limit) override { limit_ = limit; }
    bool WaitFor(int from, size_t max_bytes, std::chrono::milliseconds most) override {
      return all_.WaitFor(from, rank_, max_bytes, most);
    }
    std::vector<std::byte> Take(int from) override { return all_.Take(from, rank_); }

   private:
    ThreadLinks& all_;
    int rank_;
    int count_;
    std::chrono::milliseconds limit_;
  };

  void Send(int from, int to, std::span<const std::byte> message) {
    std::vector<std::byte> copy(message.begin(), message.end());
    const std::lock_guard lock(mutex_);
    Way& way = ways_[{from, to}];
    const int index = way.sent++;
    if (on_message_ && !on_message_(from, to, index, copy)) return;
    way.messages.push_back(std::move(copy));
    changed_.notify_all();
  }

  bool WaitFor(int from, int to, size_t max_bytes, std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    Way& way = ways_[{from, to}];
    changed_.wait_for(lock, most, [&] { return is_broken_ || !way.messages.empty(); });
    if (is_broken_ && way.messages.empty()) throw LostRank(from, "is gone");
    if (!way.messages.empty() && way.messages.front().size() > max_bytes) throw LostRank(from, "sent too many bytes");
    return !way.messages.empty();
  }

  std::vector<std::byte> Take(int from, int to) {
    const std::lock_guard lock(mutex_);
    Way& way = ways_[{from, to}];
    std::vector<std::byte> message = std::move(way.messages.front());
    way.messages.pop_front();
    return message;
  }

  std::chrono::milliseconds limit_, idle_limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, Way> ways_;
  OnMessage on_message_;
  bool is_broken_ = false;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace stoch::test
