// SPDX-License-Identifier: Apache-2.0
// Functions that run one after another on the threads of a context, as on a strand, or on a thread that brings one.
// Internal to the HTTP front. Asio's strand is not used: it ends the process where it finds no memory to go on.
#pragma once

#include <boost/asio/io_context.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/serve/http/handler_memory.h"

namespace stoch::serve {

class UrgentCall {
 public:
  virtual ~UrgentCall() = default;
  virtual void RunUrgent() = 0;
};

// Threads: any. What is queued may outlive this, but not the context.
class HttpLane {
 public:
  explicit HttpLane(boost::asio::io_context& context) : state_(std::make_shared<State>(context)) {}

  // Runs `body` on a thread of the context, after what was brought before it. What it throws, the context's run() throws.
  // Errors: bad_alloc, and then `body` is not run.
  void Post(std::function<void()> body) {
    if (state_->Add(std::move(body))) State::Continue(state_);
  }
  // Runs it before this returns where nothing else runs or waits; otherwise as Post does. `body` throws nothing.
  void Run(std::function<void()> body) {
    if (!state_->Take()) return Post(std::move(body));
    body();
    State::Leave(state_);
  }
  // Runs it before what waits. Takes no memory. Once only.
  void PostUrgent(std::shared_ptr<UrgentCall> call) noexcept {
    if (state_->AddUrgent(std::move(call))) State::Continue(state_);
  }

 private:
  struct State {
    explicit State(boost::asio::io_context& io) : context(io) {}

    // Whether nobody else runs, so that the caller has to see to it.
    bool Add(std::function<void()> body) {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(body));
      return !std::exchange(busy, true);
    }
    bool AddUrgent(std::shared_ptr<UrgentCall> call) {
      const std::lock_guard lock(mutex);
      urgent = std::move(call);
      return !std::exchange(busy, true);
    }
    bool Take() {
      const std::lock_guard lock(mutex);
      return !std::exchange(busy, true);  // nothing waits where nobody is busy
    }
    static void Continue(const std::shared_ptr<State>& state) noexcept {
      PostFrom(state->memory, state->context, [state] { RunOne(state); });
    }
    static void RunOne(const std::shared_ptr<State>& state) {
      // Others on this thread in between: no lane keeps it. The next one goes on whatever this one throws.
      struct Next {
        const std::shared_ptr<State>& state;
        ~Next() { Leave(state); }
      } const next{state};
      std::function<void()> body;
      std::shared_ptr<UrgentCall> call;
      {
        const std::lock_guard lock(state->mutex);
        call.swap(state->urgent);
        if (!call) {
          body.swap(state->queue.front());
          state->queue.pop_front();
        }
      }
      call ? call->RunUrgent() : body();
    }
    static void Leave(const std::shared_ptr<State>& state) noexcept {
      {
        const std::lock_guard lock(state->mutex);
        state->busy = !state->queue.empty() || state->urgent != nullptr;
        if (!state->busy) return;
      }
      Continue(state);
    }

    boost::asio::io_context& context;
    HandlerMemory memory;  // of the one RunOne that is posted while the lane is busy
    std::mutex mutex;      // of what follows
    std::deque<std::function<void()>> queue;
    std::shared_ptr<UrgentCall> urgent;
    bool busy = false;
  };

  const std::shared_ptr<State> state_;
};

}  // namespace stoch::serve
