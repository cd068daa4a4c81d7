// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 on TCP or a Unix socket: parsing, limits, timeouts, keep-alive, server-sent events. Wraps Boost.Asio and
// Boost.Beast. Running out of memory ends single connections, whichever thread it meets.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/serve/http/connection.h"
#include "engine/serve/http/options.h"
#include "kernels/base/error.h"

namespace stoch::serve {

// What a server is told of; called from its threads, several at once.
struct HttpHooks {
  std::function<bool(const HttpRequest& request)> always;  // cheap to answer: never waits for other requests
  // Asked when the header of a request that brings a body is complete, before any of the body is read: an answer is sent
  // at once, and the connection closes.
  std::function<std::optional<HttpResponse>(const HttpRequest& request)> refuse_unread;
  std::function<void(int status)> on_response;
  // A connection that was refused, and why; an error inside, such as no memory for a connection.
  std::function<void(const std::string& why)> on_refused;
  // An idle connection was closed in favour of a new one.
  std::function<void(const std::string& why)> on_crowded;
  std::function<void(const std::string& what)> on_error;
};

// Somebody else has the address, perhaps for a moment.
class AddressInUse : public InvalidInput {
 public:
  using InvalidInput::InvalidInput;
};

class HttpServer {
 public:
  // Listens and answers from its own threads until it is destroyed.
  // Errors: InvalidInput where it cannot listen, AddressInUse where another one does.
  HttpServer(const HttpOptions& options, HttpHandler handler, HttpHooks hooks);
  ~HttpServer();
  // Cuts every connection and joins the threads; exchanges hear of it. The handler is not called any more, and
  // connections that others still hold do nothing.
  void Stop();

  uint16_t port() const;        // 0 for a Unix socket
  std::string address() const;  // "127.0.0.1:8080", "[::1]:8080", "unix:PATH"
  // Closes the listening socket and idle connections; others close after their exchange.
  void StopAccepting();
  // Whether a thread of the sockets has run what it was asked to within this time. To be called several times in it.
  bool Answers(std::chrono::milliseconds within);
  int64_t connections() const;
  int64_t exchanges() const;  // requests whose answer is not yet handed to the system

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stoch::serve
