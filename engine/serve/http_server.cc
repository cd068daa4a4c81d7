#include "engine/serve/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "engine/serve/http_session.h"
#include "kernels/base/error.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause{100};  // after an error such as too many open files

std::string Written(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + address + "]" : address) + ":" + std::to_string(endpoint.port());
}

}  // namespace

struct HttpServer::State {
  HttpShared shared;  // outlives the sessions, which the io_context may hold to its end
  asio::io_context io;
  tcp::acceptor acceptor{asio::make_strand(io)};
  asio::steady_timer pause{acceptor.get_executor()};
  tcp::endpoint endpoint;
  std::vector<std::thread> threads;

  void Listen();
  void Accept();
  void OnAccept(error_code error, tcp::socket socket);
  std::vector<std::shared_ptr<HttpSession>> Sessions();
};

void HttpServer::State::Listen() {
  const HttpOptions& options = shared.options;
  try {
    tcp::resolver resolver(io);
    const auto flags = tcp::resolver::passive | tcp::resolver::numeric_service;
    endpoint = resolver.resolve(options.host, std::to_string(options.port), flags).begin()->endpoint();
    acceptor.open(endpoint.protocol());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen();
    endpoint = acceptor.local_endpoint();
  } catch (const boost::system::system_error& error) {
    throw InvalidInput("cannot listen on " + options.host + ", port " + std::to_string(options.port) + ": " +
                       error.code().message());
  }
}

void HttpServer::State::Accept() {
  acceptor.async_accept(asio::make_strand(io),
                        [this](error_code error, tcp::socket socket) { OnAccept(error, std::move(socket)); });
}

void HttpServer::State::OnAccept(error_code error, tcp::socket socket) {
  if (shared.closing) return;
  if (error) {
    pause.expires_after(kAcceptPause);
    pause.async_wait([this](error_code cancelled) {
      if (!cancelled) Accept();
    });
    return;
  }
  bool room = false;
  {
    const std::lock_guard lock(shared.mutex);
    room = static_cast<int64_t>(shared.sessions.size()) < shared.options.max_connections;
  }
  if (room) std::make_shared<HttpSession>(std::move(socket), shared)->Start();
  Accept();
}

std::vector<std::shared_ptr<HttpSession>> HttpServer::State::Sessions() {
  std::vector<std::shared_ptr<HttpSession>> sessions;
  const std::lock_guard lock(shared.mutex);
  for (HttpSession* session : shared.sessions) {
    if (std::shared_ptr<HttpSession> alive = session->weak_from_this().lock()) sessions.push_back(std::move(alive));
  }
  return sessions;
}

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler, std::function<void(int status)> on_response)
    : state_(std::make_unique<State>()) {
  state_->shared.options = options;
  state_->shared.handler = std::move(handler);
  state_->shared.on_response = std::move(on_response);
  state_->Listen();
  asio::post(state_->acceptor.get_executor(), [this] { state_->Accept(); });
  for (int i = 0; i < options.threads; ++i) state_->threads.emplace_back([this] { state_->io.run(); });
}

HttpServer::~HttpServer() { Stop(); }

void HttpServer::Stop() {
  state_->shared.closing = true;
  state_->io.stop();
  for (std::thread& thread : state_->threads) thread.join();
  state_->threads.clear();
  // An exchange and its session hold each other.
  for (const std::shared_ptr<HttpSession>& session : state_->Sessions()) session->Abandon();
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
