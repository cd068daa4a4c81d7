// SPDX-License-Identifier: Apache-2.0
// The connection of an answer that goes on while nobody reads it: what is sent is dropped.
#pragma once

#include <cstdint>
#include <limits>
#include <mutex>
#include <utility>

#include "engine/serve/http/connection.h"

namespace stoch::serve {

class DetachedConnection final : public Connection {
 public:
  // Runs it on the calling thread, one after another.
  void Post(std::function<void()> body) override {
    const std::lock_guard lock(mutex_);
    body();
  }
  void Run(std::function<void()> body) override { Post(std::move(body)); }
  void Send(HttpResponse) override {}
  void StartPieces(HttpResponse) override {}
  void SendPiece(std::string) override {}
  void EndPieces() override {}
  void StartEvents(HttpHeaders) override {}
  void SendEvent(std::string_view, std::string_view) override {}
  void EndEvents() override {}
  size_t backlog() const override { return 0; }
  void WhenDrained(std::function<void()> body) override { body(); }
  size_t max_backlog() const override { return std::numeric_limits<int64_t>::max(); }
  void Cut() noexcept override {}

 private:
  std::mutex mutex_;
};

}  // namespace stoch::serve
