// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http/session.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/message.hpp>
#include <string_view>
#include <utility>

#include "engine/serve/http/request_error.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kReadAheadBytes = 1 << 20;  // of requests sent before the answer to the one before
constexpr std::chrono::milliseconds kLingerTime{2000};
constexpr std::chrono::milliseconds kCrowdedTime{2000};  // for a connection too many to ask something
constexpr int kUnavailable = 503;

std::string Text(boost::beast::string_view view) { return {view.data(), view.size()}; }

// Of a request's target, which may be a whole URI ("http://host/path?query"), as to a proxy.
std::string PathOf(std::string target) {
  for (const char* scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const size_t path = target.find_first_of("/?", std::string_view(scheme).size());
    target = path == std::string::npos ? "/" : target.substr(path);
  }
  target.resize(std::min(target.find('?'), target.size()));
  return target.empty() ? "/" : target;
}

// All but the body.
HttpRequest RequestOf(const http::request<http::string_body>& message) {
  HttpRequest request;
  request.method = Text(message.method_string());
  request.path = PathOf(Text(message.target()));
  request.authorization = Text(message[http::field::authorization]);
  request.request_id = Text(message["X-Request-Id"]);
  request.last_event_id = Text(message["Last-Event-ID"]);
  return request;
}

}  // namespace

HttpSession::HttpSession(asio::ip::tcp::socket socket, asio::io_context& api, HttpShared& shared, bool crowded)
    : socket_(std::move(socket)),
      api_(api),
      shared_(shared),
      crowded_(crowded),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      ping_timer_(socket_.get_executor()) {
  const std::lock_guard lock(shared_.mutex);
  shared_.sessions.insert(this);
}

HttpSession::~HttpSession() {
  const std::lock_guard lock(shared_.mutex);
  shared_.sessions.erase(this);
}

void HttpSession::Start() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    error_code ignored;
    self->socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    self->ArmReadTimer(self->crowded_ ? kCrowdedTime : self->shared_.options.idle_timeout);
    self->Read();
  });
}

void HttpSession::CloseWhenIdle() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (!self->busy_ && !self->parser_) self->Close();
  });
}

// ---------------------------------------------------------------------------------------------------- reading ----

void HttpSession::Read() {
  if (reading_ || closed_ || input_ended_) return;
  // Nobody needs so many requests in a row; and behind bytes that nobody reads the end of the input would not be seen.
  if (busy_ && input_.size() >= kReadAheadBytes) return Close();
  reading_ = true;
  socket_.async_read_some(asio::buffer(chunk_), [self = shared_from_this()](error_code error, size_t bytes) {
    self->Guarded([&] { self->OnRead(error, bytes); });
  });
}

void HttpSession::OnRead(error_code error, size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (error == asio::error::eof) return OnEndOfInput();
  if (error) return Close();
  if (!lingering_) {
    input_.append(chunk_.data(), bytes);
    Parse();
  }
  Read();
}

// A client that waits for an answer has left, or has said all it has to say: both look alike. What is sent to one that
// left comes back as a reset, so a line that every client passes over is sent now, and again from time to time.
void HttpSession::OnEndOfInput() {
  if (!busy_) return Close();
  input_ended_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_error, [self = shared_from_this()](error_code error) {
    if (!error) self->Close();
  });
  Ping();
  ArmPing();
}

void HttpSession::ArmReadTimer(std::chrono::milliseconds timeout) {
  read_timer_.expires_after(timeout);
  read_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->Guarded([&] { self->OnReadTimer(); });
  });
}

void HttpSession::OnReadTimer() {
  // An expiry that was queued before the timer was set again counts for nothing.
  if (closed_ || busy_ || read_timer_.expiry() > asio::steady_timer::clock_type::now()) return;
  if (!parser_ || lingering_) return Close();
  Reject(http::make_error_code(http::error::partial_message));
}

void HttpSession::Parse() {
  while (!busy_ && !lingering_ && !closed_ && !input_.empty()) {
    if (!parser_) {
      parser_.emplace();
      parser_->header_limit(shared_.options.max_header_bytes);
      parser_->body_limit(shared_.options.max_body_bytes);
      is_head_seen_ = false;
      ArmReadTimer(crowded_ ? kCrowdedTime : shared_.options.request_timeout);
    }
    error_code error;
    const size_t used = parser_->put(asio::buffer(input_), error);
    input_.erase(0, used);
    if (error && error != http::error::need_more) return Reject(error);
    if (parser_->is_header_done() && !std::exchange(is_head_seen_, true) && !parser_->is_done()) {
      OnHead();
    } else if (parser_->is_done()) {
      Dispatch();
    } else if (used == 0) {
      return;
    }
  }
}

// A body follows, if anybody wants it.
void HttpSession::OnHead() {
  parser_->eager(true);
  if (std::optional<HttpResponse> refusal = shared_.hooks.refuse_unread(RequestOf(parser_->get()))) {
    return Refuse(std::move(*refusal));
  }
  if (boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) Write(kContinue);
}

void HttpSession::Reject(error_code error) {
  int status = 400;
  std::string message = "this is not HTTP: " + error.message();
  if (error == http::error::header_limit) {
    status = 431;
    message = "the headers are too long; allowed are " + std::to_string(shared_.options.max_header_bytes) + " bytes";
  } else if (error == http::error::body_limit) {
    status = 413;
    message = "the body is too long; allowed are " + std::to_string(shared_.options.max_body_bytes) + " bytes";
  } else if (error == http::error::partial_message) {
    status = 408;
    message = "the request did not arrive in time";
  }
  Refuse({status, "application/json", ErrorText(status, message, ""), {}});
}

// Of this connection nothing more is read.
void HttpSession::Refuse(HttpResponse answer) {
  busy_ = true;
  ++shared_.exchanges;
  asked_keep_alive_ = head_ = false;
  version_ = 11;
  Send(std::move(answer));
}

void HttpSession::Dispatch() {
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  read_timer_.cancel();
  busy_ = true;
  ++shared_.exchanges;
  asked_keep_alive_ = message.keep_alive() && !crowded_;
  version_ = message.version();
  head_ = message.method() == http::verb::head;
  HttpRequest request = RequestOf(message);
  request.body = std::move(message.body());
  if (shared_.hooks.always(request)) {
    shared_.handler(std::move(request), shared_from_this());
  } else if (crowded_) {
    Send({kUnavailable,
          "application/json",
          ErrorText(kUnavailable, "the server has too many connections; try again in a moment", ""),
          {{"Retry-After", "1"}}});
  } else {
    Handle(std::move(request));
  }
}

void HttpSession::Handle(HttpRequest request) {
  auto shared = std::make_shared<HttpRequest>(std::move(request));
  shared_.gate.Enter([self = shared_from_this(), shared] {
    self->api_.Post([self, shared] {
      if (!self->gone_) {
        try {
          self->exchange_ = self->shared_.handler(std::move(*shared), self);
        } catch (const std::exception& error) {
          self->shared_.hooks.on_error(error.what());
          self->Cut();
        }
      }
      self->shared_.gate.Leave();
    });
  });
}

// ------------------------------------------------------------------------------------------ the end of things ----

void HttpSession::NextRequest() {
  api_.Post([self = shared_from_this()] { self->exchange_.reset(); });
  busy_ = answered_ = started_ = events_ = false;
  drained_ = nullptr;
  ping_timer_.cancel();
  --shared_.exchanges;
  if (!keep_alive_ || shared_.closing) return Linger();
  ArmReadTimer(shared_.options.idle_timeout);
  Parse();
  if (input_ended_ && !busy_) return Linger();
  Read();
}

void HttpSession::Linger() {
  if (input_ended_) return Close();
  // Closing with unread input would make the system throw away what the client has not read yet.
  lingering_ = true;
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  ArmReadTimer(kLingerTime);
  Read();
}

void HttpSession::Close() {
  if (closed_) return;
  closed_ = gone_ = true;
  if (busy_) --shared_.exchanges;
  busy_ = false;
  drained_ = nullptr;
  read_timer_.cancel();
  write_timer_.cancel();
  ping_timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  api_.Post([self = shared_from_this()] {
    if (const std::shared_ptr<Exchange> exchange = std::exchange(self->exchange_, nullptr)) exchange->OnDisconnect();
  });
}

}  // namespace stoch::serve
