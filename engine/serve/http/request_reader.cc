// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http/request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <limits>

#include "engine/serve/http/request_error.h"
#include "engine/serve/http/tokens.h"

namespace stoch::serve {
namespace {

namespace http = boost::beast::http;
using Parser = http::request_parser<http::empty_body>;

constexpr int kBadRequest = 400;
constexpr int kTooLarge = 413;
constexpr int kTooLong = 431;
constexpr int kNotImplemented = 501;
constexpr int kUnavailable = 503;
constexpr size_t kFirstBytes = 16 << 10;  // of a body's memory
constexpr unsigned kVersion11 = 11;

[[noreturn]] void Fail(const std::string& why) { throw RequestError(kBadRequest, "", "this is not HTTP: " + why); }

std::string Text(boost::beast::string_view view) { return {view.data(), view.size()}; }

// A target may be a whole URI ("http://host/path?query"), as to a proxy. Returns: the path; host: that of a whole URI.
std::string SplitTarget(std::string target, std::optional<std::string>* host) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const size_t path = std::min(target.find_first_of("/?", scheme.size()), target.size());
    *host = target.substr(scheme.size(), path - scheme.size());
    target.erase(0, path);
    if (!target.starts_with('/')) target.insert(0, "/");
    break;
  }
  target.resize(std::min(target.find('?'), target.size()));
  return target.empty() ? "/" : target;
}

// Every line of a field, as one list.
std::string Joined(const Parser::value_type& message, http::field name) {
  std::string values;
  const auto [first, last] = message.equal_range(name);
  for (auto field = first; field != last; ++field) {
    if (!values.empty()) values += ", ";
    values += Text(field->value());
  }
  return values;
}

void CheckHost(const Parser::value_type& message) {
  const auto hosts = message.count(http::field::host);
  if (hosts > 1) Fail("more than one Host");
  if (hosts == 0 && message.version() >= kVersion11) Fail("no Host");
  const std::string host = Text(message[http::field::host]);
  if (!std::all_of(host.begin(), host.end(), IsHostCharacter)) Fail("Host is no name of a host");
}

}  // namespace

size_t RequestReader::Read(std::string_view bytes) {
  switch (stage_) {
    case Stage::kHead: return ReadHead(bytes);
    case Stage::kBody: return ReadBody(bytes);
    case Stage::kDone: return 0;
  }
  return 0;
}

// ----------------------------------------------------------------------------------------------- the header -------

size_t RequestReader::ReadHead(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size(); ++at) {
    if (head_.size() == limits_.max_header_bytes) {
      throw RequestError(
          kTooLong, "", "the headers are too long; allowed are " + std::to_string(limits_.max_header_bytes) + " bytes");
    }
    CheckHead(bytes[at]);
    head_ += bytes[at];
    if (has_start_line_ && head_.ends_with("\r\n\r\n")) {
      ParseHead();
      return at + 1;
    }
  }
  return bytes.size();
}

// What the parser would let pass: lines that end otherwise than in CR LF, and lines that go on in the next one.
void RequestReader::CheckHead(char byte) {
  const char last = head_.empty() ? '\0' : head_.back();
  if (byte == '\n' && last != '\r') Fail("an LF without its CR");
  if (last == '\r' && byte != '\n') Fail("a CR without its LF");
  if (last == '\n' && IsBlank(byte)) Fail("a line that begins with a space");
  if (has_start_line_ || byte == '\r' || byte == '\n') return;
  if (!IsTokenCharacter(byte)) Fail("expected a method");
  has_start_line_ = true;  // empty lines may come before it
}

void RequestReader::ParseHead() {
  head_.erase(0, head_.find_first_not_of("\r\n"));
  Parser parser;
  parser.header_limit(std::numeric_limits<uint32_t>::max());
  parser.body_limit(
      std::numeric_limits<uint64_t>::max());  // it reads none; boost::none is less than any length in 1.74
  boost::system::error_code error;
  parser.put(boost::asio::buffer(head_), error);
  if (!error && !parser.is_header_done()) error = http::make_error_code(http::error::partial_message);
  if (error) Fail(error.message());
  head_ = {};
  const Parser::value_type& message = parser.get();
  CheckHost(message);
  version_ = message.version();
  keep_alive_ = message.keep_alive();
  expects_continue_ = boost::beast::iequals(message[http::field::expect], "100-continue");
  std::optional<std::string> host;
  request_.method = Text(message.method_string());
  request_.path = SplitTarget(Text(message.target()), &host);
  request_.host = host.value_or(Text(message[http::field::host]));
  request_.authorization = Text(message[http::field::authorization]);
  request_.request_id = Text(message["X-Request-Id"]);
  request_.last_event_id = Text(message["Last-Event-ID"]);
  request_.content_type = Text(message[http::field::content_type]);
  request_.asked_method = Text(message[http::field::access_control_request_method]);
  if (message.count(http::field::origin) != 0) request_.origin = Text(message[http::field::origin]);
  if (message.count(http::field::content_length) != 0) length_ = parser.content_length().value();
  if (message.count(http::field::transfer_encoding) != 0) SetFraming(Joined(message, http::field::transfer_encoding));
  max_body_ = request_.method == "POST" ? limits_.max_body_bytes
                                        : std::min<uint64_t>(limits_.max_body_bytes, limits_.max_header_bytes);
  RequireAllowed(announced_bytes());
  stage_ = chunks_ || announced_bytes() > 0 ? Stage::kBody : Stage::kDone;
}

// A server in front that reads it otherwise would take a part of the body for a request.
void RequestReader::SetFraming(std::string_view transfer_encoding) {
  if (length_) Fail("both Transfer-Encoding and Content-Length");
  if (version_ < kVersion11) Fail("Transfer-Encoding in HTTP/1.0");
  if (!boost::beast::iequals({transfer_encoding.data(), transfer_encoding.size()}, "chunked")) {
    throw RequestError(kNotImplemented, "", "Transfer-Encoding: only chunked is known");
  }
  chunks_.emplace(limits_.max_header_bytes);
}

// ------------------------------------------------------------------------------------------------- the body -------

size_t RequestReader::ReadBody(std::string_view bytes) {
  size_t used = 0;
  if (chunks_) {
    used = chunks_->Read(bytes, [this](std::string_view data) { Append(data); });
  } else {
    used = static_cast<size_t>(std::min<uint64_t>(*length_ - request_.body.size(), bytes.size()));
    Append(bytes.substr(0, used));
  }
  const bool is_done = chunks_ ? chunks_->done() : request_.body.size() == *length_;
  if (is_done) stage_ = Stage::kDone;
  return used;
}

void RequestReader::RequireAllowed(uint64_t body_bytes) const {
  if (body_bytes <= max_body_) return;
  throw RequestError(kTooLarge, "", "the body is too long; allowed are " + std::to_string(max_body_) + " bytes");
}

void RequestReader::Append(std::string_view data) {
  const size_t bytes = request_.body.size() + data.size();
  RequireAllowed(bytes);
  Reserve(bytes);
  request_.body += data;
}

// The budget counts what has come, whatever the client says of what is to come: pages that nothing was written to are no
// memory yet. Where the length is not known, the body grows by copies of itself.
void RequestReader::Reserve(size_t bytes) {
  uint64_t capacity = request_.body.capacity();
  if (length_) {
    capacity = *length_;
  } else if (bytes > capacity) {
    capacity = std::min<uint64_t>(std::max<uint64_t>({bytes, 2 * capacity, kFirstBytes}), max_body_);
  }
  if (request_.memory.bytes() == 0) request_.memory = BodyLease(budget_);
  const auto counted = static_cast<int64_t>(length_ ? bytes : capacity);
  if (counted > request_.memory.bytes() && !request_.memory.GrowTo(counted)) {
    throw RequestError(kUnavailable, "",
                       "the bodies of other requests take the memory for bodies; try again in a moment");
  }
  request_.body.reserve(static_cast<size_t>(capacity));
}

}  // namespace stoch::serve
