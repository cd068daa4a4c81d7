// HTTP/1.1 on TCP: parsing, limits, timeouts, keep-alive, server-sent events. Wraps Boost.Beast.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/serve/connection.h"

namespace stoch::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0 = any free one
  int io_threads = 2;    // sockets, and the handler of requests that are always answered at once
  int api_threads = 4;   // every other call of the handler, and what is posted to connections
  // Beyond these, a few more are accepted to be told 503, or to hear what `always` answers.
  int64_t max_connections = 4096;
  uint32_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = 8 << 20;
  // Events a client has not read yet; one that lags further behind is disconnected.
  size_t max_backlog_bytes = 4 << 20;
  std::chrono::milliseconds idle_timeout{75'000};     // between requests
  std::chrono::milliseconds request_timeout{30'000};  // from a request's first byte to its last
  std::chrono::milliseconds write_timeout{30'000};    // without the client reading a byte
  std::chrono::milliseconds ping_interval{15'000};    // of a stream that has nothing to say
};

// What a server is told of; called from its threads, several at once.
struct HttpHooks {
  std::function<bool(const HttpRequest& request)> always;  // cheap to answer: never waits for other requests
  std::function<void(int status)> on_response;
  // A connection that was refused, and why; an error inside, such as no memory for a connection.
  std::function<void(const std::string& why)> on_refused;
  std::function<void(const std::string& what)> on_error;
};

class HttpServer {
 public:
  // What:   listens and answers from its own threads until it is destroyed.
  // Errors: InvalidInput where it cannot listen.
  HttpServer(const HttpOptions& options, HttpHandler handler, HttpHooks hooks);
  ~HttpServer();
  // What: cuts every connection and joins the threads; exchanges hear of it. The handler is not called any more, and
  //       connections that others still hold do nothing.
  void Stop();

  uint16_t port() const;
  std::string address() const;  // "127.0.0.1:8080", "[::1]:8080"
  // What: closes the listening socket and idle connections; others close after their exchange.
  void StopAccepting();
  int64_t connections() const;
  int64_t exchanges() const;  // requests whose answer is not yet handed to the system

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stoch::serve
