#include "engine/serve/http_session.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>
#include <utility>

#include "engine/serve/request_error.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kReadAheadBytes = 64 << 10;  // of requests sent before the answer to the one before
constexpr std::chrono::milliseconds kLingerTime{2000};

std::string Text(boost::beast::string_view view) { return {view.data(), view.size()}; }

template <class Response>
void SetHeaders(Response& response, const HttpHeaders& headers) {
  response.set(http::field::server, "stoch");
  for (const auto& [name, value] : headers) response.set(name, value);
}

}  // namespace

HttpSession::HttpSession(asio::ip::tcp::socket socket, HttpShared& shared)
    : socket_(std::move(socket)),
      shared_(shared),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()) {
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
    self->ArmReadTimer(self->shared_.options.idle_timeout);
    self->Read();
  });
}

void HttpSession::CloseWhenIdle() {
  Post([self = shared_from_this()] {
    if (!self->busy_ && !self->parser_) self->Close();
  });
}

void HttpSession::Abandon() {
  if (const std::shared_ptr<Exchange> exchange = std::exchange(exchange_, nullptr)) exchange->OnDisconnect();
}

void HttpSession::Post(std::function<void()> body) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), body = std::move(body)] { body(); });
}

// ---------------------------------------------------------------------------------------------------- reading ----

void HttpSession::Read() {
  if (reading_ || closed_ || (busy_ && input_.size() >= kReadAheadBytes)) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(chunk_),
                          [self = shared_from_this()](error_code error, size_t bytes) { self->OnRead(error, bytes); });
}

void HttpSession::OnRead(error_code error, size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (error) return OnEndOfInput();
  if (!lingering_) {
    input_.append(chunk_.data(), bytes);
    Parse();
  }
  Read();
}

void HttpSession::OnEndOfInput() {
  // A client that has its whole answer coming may stop sending; one that waits for an answer is gone.
  if (busy_ && answered_) {
    keep_alive_ = false;
    return;
  }
  Close();
}

void HttpSession::ArmReadTimer(std::chrono::milliseconds timeout) {
  read_timer_.expires_after(timeout);
  read_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) self->OnReadTimer();
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
      parser_->eager(true);
      continue_sent_ = false;
      ArmReadTimer(shared_.options.request_timeout);
    }
    error_code error;
    const size_t used = parser_->put(asio::buffer(input_), error);
    input_.erase(0, used);
    if (error && error != http::error::need_more) return Reject(error);
    if (parser_->is_done()) {
      Dispatch();
    } else {
      ContinueIfExpected();
      if (used == 0) return;
    }
  }
}

void HttpSession::ContinueIfExpected() {
  if (continue_sent_ || !parser_->is_header_done()) return;
  if (!boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) return;
  continue_sent_ = true;
  Write("HTTP/1.1 100 Continue\r\n\r\n");
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
  busy_ = true;
  ++shared_.exchanges;
  keep_alive_ = head_ = false;
  version_ = 11;
  Send({status, "application/json", ErrorText(status, message, ""), {}});
}

void HttpSession::Dispatch() {
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  read_timer_.cancel();
  busy_ = true;
  ++shared_.exchanges;
  answered_ = false;
  keep_alive_ = message.keep_alive();
  version_ = message.version();
  head_ = message.method() == http::verb::head;
  HttpRequest request;
  request.method = Text(message.method_string());
  request.path = Text(message.target());
  request.path.resize(std::min(request.path.find('?'), request.path.size()));
  request.authorization = Text(message[http::field::authorization]);
  request.request_id = Text(message["X-Request-Id"]);
  request.body = std::move(message.body());
  exchange_ = shared_.handler(std::move(request), shared_from_this());
}

// ---------------------------------------------------------------------------------------------------- writing ----

void HttpSession::Send(HttpResponse response) {
  if (closed_ || !busy_ || answered_) return;
  shared_.on_response(response.status);
  keep_alive_ = keep_alive_ && !shared_.closing;
  http::response<http::string_body> message(static_cast<http::status>(response.status), version_);
  message.set(http::field::content_type, response.content_type);
  SetHeaders(message, response.headers);
  message.keep_alive(keep_alive_);
  message.body() = std::move(response.body);
  message.prepare_payload();
  if (head_) message.body().clear();  // the length stays
  std::ostringstream text;
  text << message;
  answered_ = true;
  Write(text.str());
}

void HttpSession::StartEvents(HttpHeaders headers) {
  if (closed_ || !busy_ || answered_) return;
  shared_.on_response(200);
  chunked_ = version_ >= 11;
  keep_alive_ = keep_alive_ && chunked_ && !shared_.closing;
  http::response<http::empty_body> message(http::status::ok, version_);
  message.set(http::field::content_type, "text/event-stream");
  message.set(http::field::cache_control, "no-cache");
  message.set("X-Accel-Buffering", "no");  // a proxy must not collect events
  SetHeaders(message, headers);
  message.keep_alive(keep_alive_);
  if (chunked_) message.chunked(true);
  std::ostringstream text;
  text << message.base();
  Write(text.str());
}

void HttpSession::SendEvent(std::string_view data) {
  if (closed_ || !busy_ || answered_) return;
  const std::string event = "data: " + std::string(data) + "\n\n";
  Write(chunked_ ? boost::beast::buffers_to_string(http::make_chunk(asio::buffer(event))) : event);
  if (output_.size() > shared_.options.max_backlog_bytes) Close();  // a reader too slow for its own stream
}

void HttpSession::EndEvents() {
  if (closed_ || !busy_ || answered_) return;
  answered_ = true;
  if (chunked_) return Write(boost::beast::buffers_to_string(http::make_chunk_last()));
  if (!writing_) NextRequest();
}

void HttpSession::Write(std::string_view bytes) {
  if (closed_) return;
  output_ += bytes;
  if (writing_) return;
  writing_ = true;
  WriteSome();
}

void HttpSession::WriteSome() {
  if (written_ == in_flight_.size()) {
    in_flight_.clear();
    written_ = 0;
    in_flight_.swap(output_);
  }
  write_timer_.expires_after(shared_.options.write_timeout);
  write_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error || self->write_timer_.expiry() > asio::steady_timer::clock_type::now()) return;
    if (self->writing_) self->Close();
  });
  socket_.async_write_some(
      asio::buffer(in_flight_.data() + written_, in_flight_.size() - written_),
      [self = shared_from_this()](error_code error, size_t bytes) { self->OnWritten(error, bytes); });
}

void HttpSession::OnWritten(error_code error, size_t bytes) {
  if (closed_) return;
  if (error) return Close();
  written_ += bytes;
  if (written_ < in_flight_.size() || !output_.empty()) return WriteSome();
  writing_ = false;
  write_timer_.cancel();
  if (answered_) NextRequest();
}

void HttpSession::NextRequest() {
  exchange_.reset();
  busy_ = answered_ = false;
  --shared_.exchanges;
  if (!keep_alive_ || shared_.closing) return Linger();
  ArmReadTimer(shared_.options.idle_timeout);
  Parse();
  Read();
}

void HttpSession::Linger() {
  // Closing with unread input would make the system throw away what the client has not read yet.
  lingering_ = true;
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  ArmReadTimer(kLingerTime);
  Read();
}

void HttpSession::Close() {
  if (closed_) return;
  closed_ = true;
  if (busy_) --shared_.exchanges;
  busy_ = false;
  read_timer_.cancel();
  write_timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  Abandon();
}

}  // namespace stoch::serve
