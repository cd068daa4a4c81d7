// SPDX-License-Identifier: Apache-2.0
// One client's connection. Internal to the HTTP front (server.cc, session.cc): the only header that
// shows Boost.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include "engine/serve/http/connection.h"
#include "engine/serve/http/gate.h"
#include "engine/serve/http/lane.h"
#include "engine/serve/http/options.h"
#include "engine/serve/http/server.h"

namespace stoch::serve {

class HttpSession;

// Every client passes over it, however often it comes.
inline constexpr const char* kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

// What the sessions of one server share.
struct HttpShared {
  explicit HttpShared(const HttpOptions& http_options)
      : options(http_options), gate(std::max(1, http_options.api_threads - 1)) {}

  const HttpOptions options;
  HttpHandler handler;
  HttpHooks hooks;
  HttpGate gate;
  std::atomic<bool> closing{false};
  std::atomic<int64_t> exchanges{0};
  std::mutex mutex;
  std::unordered_set<HttpSession*> sessions;
};

// The strand of the socket (reading, parsing, writing, timers), and the lane of the API, where the handler, the exchange
// and what is posted run. The functions of Connection are called on the latter and go on on the former, in order.
// Reading never stops, also while an answer is being made: that is how a client that left is noticed.
class HttpSession final : public Connection, public std::enable_shared_from_this<HttpSession> {
 public:
  // crowded: one connection too many, which is told so.
  HttpSession(boost::asio::ip::tcp::socket socket, boost::asio::io_context& api, HttpShared& shared, bool crowded);
  ~HttpSession() override;

  void Start();
  // Any thread: closes the connection once it has no exchange.
  void CloseWhenIdle();
  // Its exchange hears of it. On the strand of the socket, or where no thread runs that any more.
  void Close();

  void Post(std::function<void()> body) override;
  void Run(std::function<void()> body) override;
  void Send(HttpResponse response) override;
  void StartPieces(HttpResponse head) override;
  void SendPiece(std::string piece) override;
  void EndPieces() override { End(); }
  void StartEvents(HttpHeaders headers) override;
  void SendEvent(std::string_view id, std::string_view data) override;
  void EndEvents() override { End(); }
  size_t backlog() const override { return handed_ + unwritten_; }
  void WhenDrained(std::function<void()> body) override;
  size_t max_backlog() const override { return shared_.options.max_backlog_bytes; }
  void Cut() noexcept override;

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  // Runs `body` on the strand of the socket unless the exchange has ended; closes the connection if it throws.
  template <class Body>
  void OnSocket(Body body);
  template <class Body>
  void Guarded(const Body& body);
  // For the lane of the API: `body`, and where it throws the connection is cut.
  std::function<void()> OrCut(std::function<void()> body);

  void Read();
  void OnRead(boost::system::error_code error, size_t bytes);
  void OnEndOfInput();
  void Parse();
  void OnHead();
  void Reject(boost::system::error_code error);
  void Refuse(HttpResponse answer);
  void Dispatch();
  void Handle(HttpRequest request);
  void StartBody(int status, std::string head, bool keep_alive, bool whole);
  void End();
  std::string Framed(std::string_view bytes) const;
  void Write(std::string bytes);
  void WriteSome();
  void OnWritten(boost::system::error_code error, size_t bytes);
  void RunDrained();
  void NextRequest();
  void Linger();
  void ArmReadTimer(std::chrono::milliseconds timeout);
  void OnReadTimer();
  void ArmPing();
  void Ping();

  boost::asio::ip::tcp::socket socket_;
  HttpLane api_;
  HttpShared& shared_;
  const bool crowded_;

  // The lane of the API only.
  std::shared_ptr<Exchange> exchange_;

  std::atomic<size_t> handed_{0};     // bytes on their way from the lane to the strand
  std::atomic<size_t> unwritten_{0};  // bytes of in_flight_ and output_
  std::atomic<bool> gone_{false};     // closed_, for the lane

  // Set before the handler is called, and constant until its exchange has ended.
  unsigned version_ = 11;
  bool head_ = false;
  bool asked_keep_alive_ = false;

  // The strand of the socket only, from here on.
  boost::asio::steady_timer read_timer_;
  boost::asio::steady_timer write_timer_;
  boost::asio::steady_timer ping_timer_;

  std::array<char, 16384> chunk_{};  // of the read in flight
  bool reading_ = false;
  bool input_ended_ = false;  // the client sends nothing more
  std::string input_;         // read and not parsed
  std::optional<Parser> parser_;
  bool is_head_seen_ = false;

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
void HttpSession::Guarded(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    shared_.hooks.on_error(error.what());
    Close();
  }
}

template <class Body>
void HttpSession::OnSocket(Body body) {
  boost::asio::dispatch(socket_.get_executor(), [self = shared_from_this(), body = std::move(body)]() mutable {
    if (self->closed_ || !self->busy_ || self->answered_) return;
    self->Guarded([&] { body(*self); });
  });
}

}  // namespace stoch::serve
