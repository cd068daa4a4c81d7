// SPDX-License-Identifier: Apache-2.0
// One client's connection. Internal to the HTTP front (server.cc, session.cc): the only header that
// shows Boost.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include "engine/serve/http/body_budget.h"
#include "engine/serve/http/connection.h"
#include "engine/serve/http/gate.h"
#include "engine/serve/http/lane.h"
#include "engine/serve/http/options.h"
#include "engine/serve/http/request_reader.h"
#include "engine/serve/http/server.h"

namespace stoch::serve {

class HttpSession;

// Every client passes over it, however often it comes.
inline constexpr const char* kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// TCP and Unix sockets. The executor's type is known, so that what has completed is called without memory for it.
using HttpSocket =
    boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, boost::asio::io_context::executor_type>;
using HttpTimer =
    boost::asio::basic_waitable_timer<std::chrono::steady_clock, boost::asio::wait_traits<std::chrono::steady_clock>,
                                      boost::asio::io_context::executor_type>;

// What the sessions of one server share.
struct HttpShared {
  explicit HttpShared(const HttpOptions& http_options)
      : options(http_options), gate(std::max(1, http_options.api_threads - 1)), bodies(http_options.max_bodies_bytes) {}

  int64_t open();  // connections
  // Words that find no memory are not said.
  void SayError(const char* what) noexcept;
  void SayRefused(const std::string& why) noexcept;

  const HttpOptions options;
  HttpHandler handler;
  HttpHooks hooks;
  HttpGate gate;
  BodyBudget bodies;
  std::optional<BrowserRules> browsers;  // from the time that it listens on
  std::atomic<bool> closing{false};
  std::atomic<int64_t> exchanges{0};
  std::mutex mutex;                           // of what follows; taken after a session's own
  std::unordered_set<HttpSession*> sessions;  // that are open
  std::list<HttpSession*> waiting;            // for a request; who has waited longest is the first
};

// The socket (reading, parsing, writing, timers), under a mutex, and the lane of the API, where the handler, the exchange
// and what is posted run and call the functions of Connection. Reading never stops, also while an answer is being made:
// that is how a client that left is noticed. Without memory a connection ends, and its exchange hears of it: nothing
// that this takes is allocated then.
class HttpSession final : public Connection, public UrgentCall, public std::enable_shared_from_this<HttpSession> {
 public:
  // crowded: one connection too many, which is told so.
  HttpSession(HttpSocket socket, boost::asio::io_context& api, HttpShared& shared, bool crowded);
  ~HttpSession() override;

  // Who has waited longest for a request, null if nobody waits.
  static std::shared_ptr<HttpSession> OldestWaiting(HttpShared& shared);

  // Any thread, as all of these.
  void Start();
  // Closes the connection once it has no exchange.
  void CloseWhenIdle();
  // Closes it if it still waits for a request.
  void CloseIfWaiting();
  // Its exchange hears of it.
  void Close() noexcept;

  void Post(std::function<void()> body) override;
  void Run(std::function<void()> body) override;
  void Send(HttpResponse response) override;
  void StartPieces(HttpResponse head) override;
  void SendPiece(std::string piece) override;
  void EndPieces() override { End(); }
  void StartEvents(HttpHeaders headers) override;
  void SendEvent(std::string_view id, std::string_view data) override;
  void EndEvents() override { End(); }
  size_t backlog() const override { return unwritten_; }
  void WhenDrained(std::function<void()> body) override;
  size_t max_backlog() const override { return shared_.options.max_backlog_bytes; }
  void Cut() noexcept override { Close(); }
  void RunUrgent() override;

 private:
  // Runs `body` under the mutex unless the exchange has ended; closes the connection if it throws.
  template <class Body>
  void OnSocket(const Body& body);
  template <class Body>
  void Guarded(const Body& body) noexcept;
  // For the lane of the API: `body`, and where it throws the connection is cut.
  std::function<void()> OrCut(std::function<void()> body);

  void Read();
  void OnRead(boost::system::error_code error, size_t bytes);
  void OnEndOfInput();
  void Parse();
  void OnHead();
  std::string Address() const;
  void Refuse(int status, const std::string& message);
  void Refuse(HttpResponse answer);
  void BeginExchange(bool keep_alive);
  void Dispatch();
  void Handle(HttpRequest request);
  bool PostToHandler(const std::shared_ptr<HttpRequest>& request) noexcept;
  void StartBody(int status, std::string head, bool keep_alive, bool whole);
  void End();
  std::string Framed(std::string_view bytes) const;
  void Write(std::string bytes);
  void WriteSome();
  void OnWritten(boost::system::error_code error, size_t bytes);
  void RunDrained();
  void NextRequest();
  void Linger();
  void WaitForRequest(std::chrono::milliseconds timeout);
  void StopWaiting();
  void Leave();
  void ArmReadTimer(std::chrono::milliseconds timeout);
  void OnReadTimer();
  void ArmPing();
  void Ping();

  HttpLane api_;
  HttpShared& shared_;
  const bool crowded_;

  // The lane of the API only.
  std::shared_ptr<Exchange> exchange_;

  std::atomic<size_t> unwritten_{0};  // bytes of in_flight_ and output_
  std::atomic<bool> gone_{false};     // closed_, for the lane

  // Set before the handler is called, and constant until its exchange has ended.
  unsigned version_ = 11;
  bool head_ = false;
  bool asked_keep_alive_ = false;
  HttpHeaders headers_;  // of the answer, besides its own

  // Of everything from here on. Recursive: a handler may answer before it returns.
  std::recursive_mutex mutex_;
  HttpSocket socket_;
  HttpTimer read_timer_;
  HttpTimer write_timer_;
  HttpTimer ping_timer_;

  std::array<char, 16384> chunk_{};  // of the read in flight
  bool reading_ = false;
  bool input_ended_ = false;  // the client sends nothing more
  std::string input_;         // read and not parsed
  std::optional<RequestReader> reader_;
  std::list<HttpSession*> place_{this};  // while it is not in shared_.waiting; of shared_.mutex
  const std::list<HttpSession*>::iterator at_ = place_.begin();
  bool waiting_ = false;  // of shared_.mutex

  bool busy_ = false;        // has an exchange
  bool started_ = false;     // its answer has begun
  bool events_ = false;      // and is a stream
  bool answered_ = false;    // all of its bytes are in output_
  bool keep_alive_ = false;  // after the current exchange

  std::string in_flight_;  // being written, from written_ on
  size_t written_ = 0;
  std::string output_;  // to be written next
  bool writing_ = false;
  std::function<void()> drained_;  // to be posted when most of the backlog has left

  bool lingering_ = false;  // sent everything; reads on so that the client gets to read it
  bool closed_ = false;
};

// What a connection cannot do for lack of memory ends the connection alone.
template <class Body>
void HttpSession::Guarded(const Body& body) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    body();
  } catch (const std::exception& error) {
    shared_.SayError(error.what());
    Close();
  }
}

template <class Body>
void HttpSession::OnSocket(const Body& body) {
  Guarded([&] {
    if (!closed_ && busy_ && !answered_) body();
  });
}

}  // namespace stoch::serve
