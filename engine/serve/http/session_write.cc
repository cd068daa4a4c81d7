// SPDX-License-Identifier: Apache-2.0
// What a session sends (session.cc has what it reads, and its end).

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>
#include <utility>

#include "engine/serve/http/session.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kDrainedBytes = 64 << 10;  // of a backlog that counts as gone

template <class Response>
void SetHeaders(Response& response, const HttpResponse& answer, const HttpHeaders& more) {
  response.set(http::field::server, "stoch");
  if (!answer.content_type.empty()) response.set(http::field::content_type, answer.content_type);
  for (const HttpHeaders* headers : {&answer.headers, &more}) {
    for (const auto& [name, value] : *headers) response.set(name, value);
  }
}

template <class Header>
std::string Written(const Header& header) {
  std::ostringstream text;
  text.exceptions(std::ios::badbit);  // otherwise a stream keeps it to itself that it found no memory: half a head
  text << header;
  return std::move(text).str();
}

}  // namespace

std::function<void()> HttpSession::OrCut(std::function<void()> body) {
  return [self = shared_from_this(), body = std::move(body)] {
    try {
      body();
    } catch (const std::exception& error) {
      self->shared_.SayError(error.what());
      self->Cut();
    }
  };
}

void HttpSession::Post(std::function<void()> body) { api_.Post(OrCut(std::move(body))); }
void HttpSession::Run(std::function<void()> body) { api_.Run(OrCut(std::move(body))); }

void HttpSession::WhenDrained(std::function<void()> body) {
  OnSocket([&] {
    drained_ = std::move(body);
    RunDrained();
  });
}

// whole: `head` is the answer to its end. The session knows before a byte leaves: a client that has it all may send its
// next request before this thread runs again.
void HttpSession::StartBody(int status, std::string head, bool keep_alive, bool whole) {
  OnSocket([&] {
    shared_.hooks.on_response(status);
    started_ = true;
    keep_alive_ = keep_alive;
    answered_ = whole;
    Write(std::move(head));
  });
}

void HttpSession::Send(HttpResponse response) {
  const bool keep_alive = asked_keep_alive_ && !shared_.closing;
  http::response<http::string_body> message(static_cast<http::status>(response.status), version_);
  SetHeaders(message, response, headers_);
  message.keep_alive(keep_alive);
  message.body() = std::move(response.body);
  message.prepare_payload();
  if (head_) message.body().clear();  // the length stays
  std::string text = Written(message.base());
  text += message.body();
  StartBody(response.status, std::move(text), keep_alive, true);
}

void HttpSession::StartPieces(HttpResponse head) {
  const bool chunked = version_ >= 11;
  const bool keep_alive = asked_keep_alive_ && chunked && !shared_.closing;
  http::response<http::empty_body> message(static_cast<http::status>(head.status), version_);
  SetHeaders(message, head, headers_);
  message.keep_alive(keep_alive);
  if (chunked) message.chunked(true);
  StartBody(head.status, Written(message.base()), keep_alive, false);
}

std::string HttpSession::Framed(std::string_view bytes) const {
  if (version_ < 11) return std::string(bytes);
  return boost::beast::buffers_to_string(http::make_chunk(asio::buffer(bytes.data(), bytes.size())));
}

void HttpSession::SendPiece(std::string piece) {
  if (gone_ || piece.empty()) return;
  OnSocket([&] { Write(Framed(piece)); });
}

void HttpSession::StartEvents(HttpHeaders headers) {
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");  // a proxy must not collect events
  StartPieces({200, "text/event-stream", "", std::move(headers)});
  OnSocket([&] {
    events_ = true;
    ArmPing();
  });
}

void HttpSession::SendEvent(std::string_view id, std::string_view data) {
  std::string event;
  if (!id.empty()) event.append("id: ").append(id).append("\n");
  SendPiece(event.append("data: ").append(data).append("\n\n"));
}

void HttpSession::End() {
  OnSocket([&] {
    answered_ = true;
    if (version_ >= 11) {
      Write(boost::beast::buffers_to_string(http::make_chunk_last()));
    } else if (!writing_) {
      NextRequest();
    }
  });
}

void HttpSession::ArmPing() {
  ping_timer_.expires_after(shared_.options.ping_interval);
  ping_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error) return;
    self->Guarded([&] {
      if (self->closed_ || !self->busy_ || self->answered_) return;
      if (self->ping_timer_.expiry() > std::chrono::steady_clock::now()) return;
      self->Ping();
      self->ArmPing();
    });
  });
}

void HttpSession::Ping() {
  if (closed_ || answered_ || writing_) return;
  std::string ping;
  if (events_) {
    ping = Framed(": ping\n\n");
  } else if (input_ended_ && !started_ && version_ >= 11) {
    ping = kContinue;
  }
  if (!ping.empty()) Write(std::move(ping));
}

void HttpSession::Write(std::string bytes) {
  if (closed_) return;
  unwritten_ += bytes.size();
  if (output_.empty()) {
    output_ = std::move(bytes);
  } else {
    output_ += bytes;
  }
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
    if (error) return;
    self->Guarded([&] {
      if (self->writing_ && self->write_timer_.expiry() <= std::chrono::steady_clock::now()) self->Close();
    });
  });
  socket_.async_write_some(asio::buffer(in_flight_.data() + written_, in_flight_.size() - written_),
                           [self = shared_from_this()](error_code error, size_t bytes) {
                             self->Guarded([&] { self->OnWritten(error, bytes); });
                           });
}

void HttpSession::OnWritten(error_code error, size_t bytes) {
  if (closed_) return;
  if (error) return Close();
  written_ += bytes;
  unwritten_ -= bytes;
  RunDrained();
  if (written_ < in_flight_.size() || !output_.empty()) return WriteSome();
  in_flight_ = {};
  written_ = 0;
  writing_ = false;
  write_timer_.cancel();
  if (busy_ && answered_) NextRequest();
}

void HttpSession::RunDrained() {
  if (drained_ && backlog() <= kDrainedBytes) Post(std::exchange(drained_, nullptr));
}

}  // namespace stoch::serve
