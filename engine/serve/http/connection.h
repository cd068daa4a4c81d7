// SPDX-License-Identifier: Apache-2.0
// What the HTTP front and the API know of each other.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/serve/http/body_budget.h"

namespace stoch::serve {

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // without the query
  std::string body;
  std::string authorization;          // the header's value, "" if absent
  std::string request_id;             // X-Request-Id, "" if absent
  std::string last_event_id;          // Last-Event-ID, "" if absent
  std::string host;                   // the host that the client meant, with its port: of the URI, or Host
  std::string address;                // of the client, without its port; "" if that is not known
  std::optional<std::string> origin;  // Origin: a page of a browser asks
  std::string content_type;
  std::string asked_method;  // Access-Control-Request-Method of a preflight request, "" if absent
  BodyLease memory;          // of the body, free for others when the request is gone
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
};

// One request's way back to its client. Everything but Post and Run is called from within Post, Run, WhenDrained or the
// handler: the calls of one connection never overlap, and none of them calls the exchange back. Calls on a connection
// that is gone do nothing.
class Connection {
 public:
  virtual ~Connection() = default;
  // Any thread, returns at once.
  virtual void Post(std::function<void()> body) = 0;
  // Any thread: runs `body` on it, where nothing of this connection runs or waits; otherwise as Post does.
  virtual void Run(std::function<void()> body) = 0;
  // The whole response. It ends the exchange.
  virtual void Send(HttpResponse response) = 0;
  // A response whose length is not known yet: its head, any number of pieces, and their end, which ends the exchange.
  virtual void StartPieces(HttpResponse head) = 0;
  virtual void SendPiece(std::string piece) = 0;
  virtual void EndPieces() = 0;
  // Begins server-sent events; then any number of events, and their end, which ends the exchange.
  virtual void StartEvents(HttpHeaders headers) = 0;
  virtual void SendEvent(std::string_view id, std::string_view data) = 0;  // one line each
  virtual void EndEvents() = 0;

  // Bytes that were sent here and that the system has not taken yet.
  virtual size_t backlog() const = 0;
  // Runs `body` as Post does, once most of the backlog has left.
  virtual void WhenDrained(std::function<void()> body) = 0;
  // The bytes that may wait for a client that reads too slowly for its stream.
  virtual size_t max_backlog() const = 0;
  // Closes the connection; its exchange hears of it.
  virtual void Cut() noexcept = 0;
};

// A request that is not answered yet.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // The client is gone: free what it holds. Called as what Post takes is.
  virtual void OnDisconnect() = 0;
};

// Answers at once or later. Returns nullptr, or what to tell if the client leaves before the exchange ends.
using HttpHandler = std::function<std::shared_ptr<Exchange>(HttpRequest, std::shared_ptr<Connection>)>;

}  // namespace stoch::serve
