// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http/session.h"

#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstring>
#include <utility>

#include "engine/serve/http/request_error.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kReadAheadBytes = 256 << 10;  // of requests sent before the answer to the one before
constexpr std::chrono::milliseconds kLingerTime{2000};
constexpr std::chrono::milliseconds kCrowdedTime{2000};  // for a connection too many to ask something
constexpr int kTimeout = 408;
constexpr int kUnavailable = 503;

}  // namespace

int64_t HttpShared::open() {
  const std::lock_guard lock(mutex);
  return static_cast<int64_t>(sessions.size());
}

void HttpShared::SayError(const char* what) noexcept {
  try {
    hooks.on_error(what);
  } catch (const std::exception&) {  // of memory for the words
  }
}

void HttpShared::SayRefused(const std::string& why) noexcept {
  try {
    hooks.on_refused(why);
  } catch (const std::exception&) {
  }
}

HttpSession::HttpSession(HttpSocket socket, asio::io_context& api, HttpShared& shared, bool crowded)
    : api_(api),
      shared_(shared),
      crowded_(crowded),
      socket_(std::move(socket)),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      ping_timer_(socket_.get_executor()) {
  const std::lock_guard lock(shared_.mutex);
  shared_.sessions.insert(this);
}

HttpSession::~HttpSession() { Leave(); }

// What the others know of it.
void HttpSession::Leave() {
  StopWaiting();
  const std::lock_guard lock(shared_.mutex);
  shared_.sessions.erase(this);
}

std::shared_ptr<HttpSession> HttpSession::OldestWaiting(HttpShared& shared) {
  const std::lock_guard lock(shared.mutex);
  for (HttpSession* session : shared.waiting) {
    if (std::shared_ptr<HttpSession> alive = session->weak_from_this().lock()) return alive;
  }
  return nullptr;
}

void HttpSession::Start() {
  Guarded([&] {
    error_code ignored;  // Unix sockets know no such thing
    socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    const HttpOptions& options = shared_.options;
    WaitForRequest(crowded_ ? kCrowdedTime : std::min(options.first_byte_timeout, options.idle_timeout));
    Read();
  });
}

void HttpSession::CloseWhenIdle() {
  const std::lock_guard lock(mutex_);
  if (!busy_ && !reader_) Close();
}

void HttpSession::CloseIfWaiting() {
  const std::lock_guard lock(mutex_);
  if (!busy_ && (!reader_ || reader_->stage() == RequestReader::Stage::kHead)) Close();
}

void HttpSession::WaitForRequest(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(shared_.mutex);
    if (!std::exchange(waiting_, true)) shared_.waiting.splice(shared_.waiting.end(), place_);
  }
  ArmReadTimer(timeout);
}

void HttpSession::StopWaiting() {
  const std::lock_guard lock(shared_.mutex);
  if (std::exchange(waiting_, false)) place_.splice(place_.end(), shared_.waiting, at_);
}

// ---------------------------------------------------------------------------------------------------- reading ----

void HttpSession::Read() {
  if (reading_ || closed_ || input_ended_) return;
  // Nobody needs so many requests in a row; and behind bytes that nobody reads the end of the input would not be seen. A
  // client that has its answer may send the next request before this server knows: NextRequest reads on.
  if (busy_ && input_.size() >= kReadAheadBytes) return answered_ ? void() : Close();
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
  socket_.async_wait(HttpSocket::wait_error, [self = shared_from_this()](error_code error) {
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
  if (closed_ || busy_ || read_timer_.expiry() > std::chrono::steady_clock::now()) return;
  if (!reader_ || lingering_) return Close();
  Refuse(kTimeout, "the request did not arrive in time");
}

void HttpSession::Parse() {
  try {
    while (!busy_ && !lingering_ && !closed_ && !input_.empty()) {
      if (!reader_) {
        const HttpOptions& options = shared_.options;
        reader_.emplace(ReaderLimits{options.max_header_bytes, options.max_body_bytes}, shared_.bodies);
        ArmReadTimer(crowded_ ? kCrowdedTime : options.request_timeout);
      }
      const RequestReader::Stage before = reader_->stage();
      input_.erase(0, reader_->Read(input_));
      if (before == RequestReader::Stage::kHead && reader_->stage() != before) OnHead();
      if (reader_ && reader_->stage() == RequestReader::Stage::kDone) Dispatch();
    }
  } catch (const RequestError& error) {
    Refuse(error.status(), error.what());
  }
}

// Nothing of a body has been read.
void HttpSession::OnHead() {
  StopWaiting();
  HttpRequest& request = reader_->request();
  request.address = Address();
  version_ = reader_->version();
  head_ = request.method == "HEAD";
  headers_ = shared_.browsers->Headers(request);
  const bool has_body = reader_->stage() == RequestReader::Stage::kBody;
  std::optional<HttpResponse> answer = shared_.browsers->Answer(request);
  if (!answer && has_body) answer = shared_.hooks.refuse_unread(request);
  if (answer) {
    BeginExchange(reader_->keep_alive() && !has_body);
    return Send(std::move(*answer));
  }
  if (static_cast<int64_t>(reader_->announced_bytes()) > shared_.bodies.left()) {
    throw RequestError(kUnavailable, "",
                       "the bodies of other requests take the memory for bodies; try again in a moment");
  }
  if (has_body && reader_->expects_continue()) Write(kContinue);
}

// Of the other end; "" where it is gone, or comes by a Unix socket.
std::string HttpSession::Address() const {
  error_code error;
  const HttpSocket::endpoint_type other = socket_.remote_endpoint(error);
  if (error || other.protocol().family() == AF_UNIX) return "";
  asio::ip::tcp::endpoint endpoint;
  std::memcpy(endpoint.data(), other.data(), std::min(other.size(), endpoint.capacity()));
  return endpoint.address().to_string();
}

// A request that is not understood, or whose body is not wanted: of this connection nothing more is read.
void HttpSession::Refuse(int status, const std::string& message) {
  HttpResponse answer{status, "application/json", ErrorText(status, message, ""), {}};
  if (status == kUnavailable) answer.headers.emplace_back("Retry-After", "1");
  if (reader_ && reader_->stage() == RequestReader::Stage::kHead) {
    version_ = 11;
    head_ = false;
    headers_.clear();
  }
  BeginExchange(false);
  Send(std::move(answer));
}

void HttpSession::BeginExchange(bool keep_alive) {
  reader_.reset();
  read_timer_.cancel();
  busy_ = true;
  ++shared_.exchanges;
  asked_keep_alive_ = keep_alive && !crowded_;
}

void HttpSession::Dispatch() {
  HttpRequest request = std::move(reader_->request());
  BeginExchange(reader_->keep_alive());
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
  shared_.gate.Enter([self = shared_from_this(), shared] { return self->PostToHandler(shared); });
}

// Returns whether somebody leaves the gate later.
bool HttpSession::PostToHandler(const std::shared_ptr<HttpRequest>& request) noexcept {
  try {
    api_.Post([self = shared_from_this(), request] {
      if (!self->gone_) {
        try {
          self->exchange_ = self->shared_.handler(std::move(*request), self);
        } catch (const std::exception& error) {
          self->shared_.SayError(error.what());
          self->Cut();
        }
      }
      self->shared_.gate.Leave();
    });
    return true;
  } catch (const std::exception& error) {
    shared_.SayError(error.what());
    Cut();
    return false;
  }
}

// ------------------------------------------------------------------------------------------ the end of things ----

void HttpSession::NextRequest() {
  api_.Post([self = shared_from_this()] { self->exchange_.reset(); });
  busy_ = answered_ = started_ = events_ = false;
  drained_ = nullptr;
  ping_timer_.cancel();
  --shared_.exchanges;
  if (!keep_alive_ || shared_.closing) return Linger();
  if (input_.empty()) input_ = {};  // of what may have been read ahead
  WaitForRequest(shared_.options.idle_timeout);
  Parse();
  if (input_ended_ && !busy_) return Linger();
  Read();
}

void HttpSession::Linger() {
  if (input_ended_) return Close();
  // Closing with unread input would make the system throw away what the client has not read yet.
  lingering_ = true;
  error_code ignored;
  socket_.shutdown(HttpSocket::shutdown_send, ignored);
  WaitForRequest(kLingerTime);
  Read();
}

void HttpSession::Close() noexcept {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = gone_ = true;
  if (busy_) --shared_.exchanges;
  busy_ = false;
  drained_ = nullptr;
  reader_.reset();
  Leave();
  read_timer_.cancel();
  write_timer_.cancel();
  ping_timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  api_.PostUrgent(shared_from_this());
}

void HttpSession::RunUrgent() {
  if (const std::shared_ptr<Exchange> exchange = std::exchange(exchange_, nullptr)) exchange->OnDisconnect();
}

}  // namespace stoch::serve
