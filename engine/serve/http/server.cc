// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http/server.h"

#include <pthread.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "engine/serve/http/handler_memory.h"
#include "engine/serve/http/listener.h"
#include "engine/serve/http/session.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kAcceptPause{100};  // after an error such as too many open files
constexpr milliseconds kMemoryPause{10};   // for some to be there again
constexpr int64_t kCrowd = 32;  // connections beyond the limit that are accepted, to be told that they are too many

}  // namespace

struct HttpServer::State {
  explicit State(const HttpOptions& options) : shared(options) {
    shared.browsers.emplace(options.browsers, listener.on_loopback());
  }

  HttpShared shared;  // outlives the sessions, which the io_contexts may hold to their end
  HandlerMemory ping_memory;
  asio::io_context io;
  asio::io_context api;
  asio::executor_work_guard<asio::io_context::executor_type> io_work{io.get_executor()};
  asio::executor_work_guard<asio::io_context::executor_type> api_work{api.get_executor()};
  HttpListener listener{io, shared.options};
  HttpTimer pause{io.get_executor()};
  std::mutex mutex;  // of the acceptor and the pause
  std::atomic<bool> is_accepting{false};
  std::atomic<bool> is_asked{false};
  std::atomic<Clock::duration::rep> answered{Clock::now().time_since_epoch().count()};
  std::vector<std::thread> threads;

  class Accepting;

  void Accept();
  void OnAccept(error_code error, HttpSocket socket, Accepting accepting);
  void Pause(Accepting accepting);
  void Take(HttpSocket socket);
  void Run(asio::io_context& context, const char* name);
  std::vector<std::shared_ptr<HttpSession>> Sessions();
  void Forget();
};

// Held by the handler of whatever is to lead to the next connection. Also where Asio drops the handler for want of memory
// it ends, and accepting can begin again.
class HttpServer::State::Accepting {
 public:
  explicit Accepting(std::atomic<bool>& is_accepting) : is_accepting_(&is_accepting) {}
  Accepting(Accepting&& other) noexcept : is_accepting_(std::exchange(other.is_accepting_, nullptr)) {}
  Accepting& operator=(Accepting&&) = delete;
  ~Accepting() { End(); }
  void End() {
    if (is_accepting_ != nullptr) *is_accepting_ = false;
    is_accepting_ = nullptr;
  }

 private:
  std::atomic<bool>* is_accepting_;
};

// Unless it does already, or is to stop. Errors: those of memory.
void HttpServer::State::Accept() {
  if (is_accepting.exchange(true)) return;
  Accepting accepting(is_accepting);
  const std::lock_guard lock(mutex);
  if (shared.closing) return;
  listener.acceptor().async_accept([this, held = std::move(accepting)](error_code error, HttpSocket socket) mutable {
    OnAccept(error, std::move(socket), std::move(held));
  });
}

void HttpServer::State::OnAccept(error_code error, HttpSocket socket, Accepting accepting) {
  if (shared.closing) return;
  if (error) {
    shared.SayRefused("accept: " + error.message());
    return Pause(std::move(accepting));
  }
  try {
    Take(std::move(socket));
  } catch (const std::exception& failure) {  // no memory for a connection: the next one may have some
    shared.SayRefused(failure.what());
  }
  accepting.End();
  Accept();
}

void HttpServer::State::Pause(Accepting accepting) {
  const std::lock_guard lock(mutex);
  pause.expires_after(kAcceptPause);
  pause.async_wait([this, held = std::move(accepting)](error_code) mutable {
    held.End();
    Accept();
  });
}

void HttpServer::State::Take(HttpSocket socket) {
  const int64_t most = shared.options.max_connections;
  bool crowded = shared.open() >= most;
  if (crowded) {
    if (const std::shared_ptr<HttpSession> oldest = HttpSession::OldestWaiting(shared)) {
      shared.hooks.on_crowded("more than " + std::to_string(most) + " connections: the oldest idle one is closed");
      oldest->CloseIfWaiting();
      crowded = shared.open() >= most;
    }
  }
  if (crowded) shared.SayRefused("more than " + std::to_string(most) + " connections");
  if (shared.open() >= most + kCrowd) return;
  std::make_shared<HttpSession>(std::move(socket), api, shared, crowded)->Start();
}

// Nothing that a handler throws ends a thread, and whatever it was, the next connection is waited for.
void HttpServer::State::Run(asio::io_context& context, const char* name) {
  pthread_setname_np(pthread_self(), name);
  for (;;) {
    try {
      if (&context == &io) Accept();
      context.run();
      return;
    } catch (const std::exception& error) {
      shared.SayError(error.what());
      std::this_thread::sleep_for(kMemoryPause);
    }
  }
}

std::vector<std::shared_ptr<HttpSession>> HttpServer::State::Sessions() {
  std::vector<std::shared_ptr<HttpSession>> sessions;
  const std::lock_guard lock(shared.mutex);
  sessions.reserve(shared.sessions.size());
  for (HttpSession* session : shared.sessions) {
    if (std::shared_ptr<HttpSession> alive = session->weak_from_this().lock()) sessions.push_back(std::move(alive));
  }
  return sessions;
}

// What is still queued holds sessions, and sessions hold parts of both contexts: it goes while both are there. Nothing
// runs for long: every session is closed.
void HttpServer::State::Forget() {
  size_t handlers = 1;
  while (handlers > 0) {
    api.restart();
    io.restart();
    try {
      handlers = api.poll() + io.poll();
    } catch (const std::exception& error) {
      shared.SayError(error.what());
    }
  }
}

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler, HttpHooks hooks)
    : state_(std::make_unique<State>(options)) {
  State& state = *state_;
  state.shared.handler = std::move(handler);
  state.shared.hooks = std::move(hooks);
  for (int i = 0; i < options.io_threads; ++i) state.threads.emplace_back([&] { state.Run(state.io, "http-io"); });
  for (int i = 0; i < options.api_threads; ++i) state.threads.emplace_back([&] { state.Run(state.api, "http-api"); });
}

HttpServer::~HttpServer() { Stop(); }

void HttpServer::Stop() {
  State& state = *state_;
  state.shared.closing = true;
  state.io_work.reset();
  state.api_work.reset();
  state.api.stop();
  state.io.stop();
  for (std::thread& thread : state.threads) thread.join();
  state.threads.clear();
  state.shared.gate.Close();
  error_code ignored;
  state.listener.acceptor().close(ignored);
  state.pause.cancel();
  // An exchange and its session hold each other.
  for (const std::shared_ptr<HttpSession>& session : state.Sessions()) session->Close();
  state.Forget();
}

uint16_t HttpServer::port() const { return state_->listener.port(); }
std::string HttpServer::address() const { return state_->listener.address(); }

void HttpServer::StopAccepting() {
  state_->shared.closing = true;
  {
    const std::lock_guard lock(state_->mutex);
    error_code ignored;
    state_->listener.acceptor().close(ignored);
    state_->pause.cancel();
  }
  for (const std::shared_ptr<HttpSession>& session : state_->Sessions()) session->CloseWhenIdle();
}

bool HttpServer::Answers(milliseconds within) {
  State& state = *state_;
  const auto now = [] { return Clock::now().time_since_epoch(); };
  if (!state.is_asked.exchange(true)) {
    PostFrom(state.ping_memory, state.io, [&state, now] {
      state.answered = now().count();
      state.is_asked = false;
    });
  }
  return now() - Clock::duration(state.answered) < within;
}

int64_t HttpServer::connections() const { return state_->shared.open(); }

int64_t HttpServer::exchanges() const { return state_->shared.exchanges; }

}  // namespace stoch::serve
