// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http/server.h"

#include <sys/socket.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "engine/serve/http/session.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause{100};  // after an error such as too many open files
constexpr int64_t kCrowd = 32;  // connections beyond the limit that are accepted, to be told that they are too many

std::string Written(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + address + "]" : address) + ":" + std::to_string(endpoint.port());
}

}  // namespace

struct HttpServer::State {
  explicit State(const HttpOptions& options) : shared(options) {}

  HttpShared shared;  // outlives the sessions, which the io_contexts may hold to their end
  asio::io_context io;
  asio::io_context api;
  asio::executor_work_guard<asio::io_context::executor_type> api_work{api.get_executor()};
  tcp::acceptor acceptor{asio::make_strand(io)};
  asio::steady_timer pause{acceptor.get_executor()};
  tcp::endpoint endpoint;
  std::vector<std::thread> threads;

  void Listen();
  void Accept();
  void OnAccept(error_code error, tcp::socket socket);
  void Run(asio::io_context& context);
  std::vector<std::shared_ptr<HttpSession>> Sessions();
  void Forget();
};

void HttpServer::State::Listen() {
  const HttpOptions& options = shared.options;
  try {
    if (options.listening_fd >= 0) {
      sockaddr_storage address{};
      socklen_t size = sizeof(address);
      if (getsockname(options.listening_fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
        throw boost::system::system_error(errno, boost::system::system_category());
      }
      acceptor.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), options.listening_fd);
      endpoint = acceptor.local_endpoint();
      return;
    }
    tcp::resolver resolver(io);
    const auto flags = tcp::resolver::passive | tcp::resolver::numeric_service;
    endpoint = resolver.resolve(options.host, std::to_string(options.port), flags).begin()->endpoint();
    acceptor.open(endpoint.protocol());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
    endpoint = acceptor.local_endpoint();
  } catch (const boost::system::system_error& error) {
    const std::string message =
        "cannot listen on " + options.host + ", port " + std::to_string(options.port) + ": " + error.code().message();
    if (error.code() == boost::system::errc::address_in_use) throw AddressInUse(message);
    throw InvalidInput(message);
  }
}

void HttpServer::State::Accept() {
  acceptor.async_accept(asio::make_strand(io), [this](error_code error, tcp::socket socket) {
    try {
      OnAccept(error, std::move(socket));
    } catch (const std::exception& failure) {  // no memory for a connection: the next one may have some
      shared.hooks.on_refused(failure.what());
      Accept();
    }
  });
}

void HttpServer::State::OnAccept(error_code error, tcp::socket socket) {
  if (shared.closing) return;
  if (error) {
    shared.hooks.on_refused("accept: " + error.message());
    pause.expires_after(kAcceptPause);
    pause.async_wait([this](error_code cancelled) {
      if (!cancelled) Accept();
    });
    return;
  }
  int64_t there = 0;
  {
    const std::lock_guard lock(shared.mutex);
    there = static_cast<int64_t>(shared.sessions.size());
  }
  const bool crowded = there >= shared.options.max_connections;
  if (crowded) shared.hooks.on_refused("more than " + std::to_string(shared.options.max_connections) + " connections");
  if (there < shared.options.max_connections + kCrowd) {
    std::make_shared<HttpSession>(std::move(socket), api, shared, crowded)->Start();
  }
  Accept();
}

// Nothing that a handler throws ends a thread.
void HttpServer::State::Run(asio::io_context& context) {
  for (;;) {
    try {
      context.run();
      return;
    } catch (const std::exception& error) {
      shared.hooks.on_error(error.what());
    }
  }
}

std::vector<std::shared_ptr<HttpSession>> HttpServer::State::Sessions() {
  std::vector<std::shared_ptr<HttpSession>> sessions;
  const std::lock_guard lock(shared.mutex);
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
      shared.hooks.on_error(error.what());
    }
  }
}

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler, HttpHooks hooks)
    : state_(std::make_unique<State>(options)) {
  State& state = *state_;
  state.shared.handler = std::move(handler);
  state.shared.hooks = std::move(hooks);
  state.Listen();
  asio::post(state.acceptor.get_executor(), [&state] { state.Accept(); });
  for (int i = 0; i < options.io_threads; ++i) state.threads.emplace_back([&state] { state.Run(state.io); });
  for (int i = 0; i < options.api_threads; ++i) state.threads.emplace_back([&state] { state.Run(state.api); });
}

HttpServer::~HttpServer() { Stop(); }

void HttpServer::Stop() {
  State& state = *state_;
  state.shared.closing = true;
  state.api_work.reset();
  state.api.stop();
  state.io.stop();
  for (std::thread& thread : state.threads) thread.join();
  state.threads.clear();
  state.shared.gate.Close();
  error_code ignored;
  state.acceptor.close(ignored);
  state.pause.cancel();
  // An exchange and its session hold each other.
  for (const std::shared_ptr<HttpSession>& session : state.Sessions()) session->Close();
  state.Forget();
}

uint16_t HttpServer::port() const { return state_->endpoint.port(); }
std::string HttpServer::address() const { return Written(state_->endpoint); }

void HttpServer::StopAccepting() {
  state_->shared.closing = true;
  asio::post(state_->acceptor.get_executor(), [this] {
    error_code ignored;
    state_->acceptor.close(ignored);
    state_->pause.cancel();
  });
  for (const std::shared_ptr<HttpSession>& session : state_->Sessions()) session->CloseWhenIdle();
}

int64_t HttpServer::connections() const {
  const std::lock_guard lock(state_->shared.mutex);
  return static_cast<int64_t>(state_->shared.sessions.size());
}

int64_t HttpServer::exchanges() const { return state_->shared.exchanges; }

}  // namespace stoch::serve
