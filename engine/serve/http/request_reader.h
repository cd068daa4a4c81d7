// SPDX-License-Identifier: Apache-2.0
// One HTTP/1.1 request out of the bytes of a connection (RFC 9112), bounded at every byte. Wraps the parser of
// Boost.Beast for the header; knows no socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/serve/http/body_budget.h"
#include "engine/serve/http/chunk_decoder.h"
#include "engine/serve/http/connection.h"

namespace stoch::serve {

struct ReaderLimits {
  size_t max_header_bytes = 16 << 10;  // of the start line and the fields; of what is between chunks; of trailers
  uint64_t max_body_bytes = 5 << 20;   // of POST; other methods have no more than max_header_bytes
};

class RequestReader {
 public:
  // budget: of the bodies of all requests; outlives this and the requests.
  RequestReader(const ReaderLimits& limits, BodyBudget& budget) : limits_(limits), budget_(budget) {}

  enum class Stage { kHead, kBody, kDone };
  Stage stage() const { return stage_; }

  // Reads from the front of `bytes`, at most to the end of the header or to the end of the request, whichever comes next.
  // Holds no more than max_header_bytes and what the budget gave for the body.
  // Returns: how many bytes it read; all of them, or the stage is another one.
  // Errors: RequestError with the status to answer; the connection closes then, for its framing is unknown: 400 for what
  // is no HTTP, 413, 431, 501 for a transfer coding other than chunked, 503 where the budget is spent.
  size_t Read(std::string_view bytes);

  // From kBody on. The body is there, with its lease, from kDone on.
  HttpRequest& request() { return request_; }
  unsigned version() const { return version_; }  // 10 or 11
  bool keep_alive() const { return keep_alive_; }
  bool expects_continue() const { return expects_continue_; }
  // Bytes that the body will have, as far as the header says.
  uint64_t announced_bytes() const { return length_.value_or(0); }

 private:
  size_t ReadHead(std::string_view bytes);
  size_t ReadBody(std::string_view bytes);
  void CheckHead(char byte);
  void ParseHead();
  void SetFraming(std::string_view transfer_encoding);
  void RequireAllowed(uint64_t body_bytes) const;
  void Append(std::string_view data);
  void Reserve(size_t bytes);

  const ReaderLimits limits_;
  BodyBudget& budget_;
  Stage stage_ = Stage::kHead;
  std::string head_;
  bool has_start_line_ = false;
  HttpRequest request_;
  unsigned version_ = 11;
  bool keep_alive_ = false;
  bool expects_continue_ = false;
  std::optional<uint64_t> length_;
  std::optional<ChunkDecoder> chunks_;
  uint64_t max_body_ = 0;
};

}  // namespace stoch::serve
