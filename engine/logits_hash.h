// SPDX-License-Identifier: Apache-2.0
// sha256 of logits: the fingerprint by which runs on different machines are compared.
#pragma once

#include <memory>
#include <span>
#include <string>

namespace stoch {

// sha256 over rows of raw logits (before penalties and temperature), each vocab_size float32 in little-endian order,
// concatenated in the order added, nothing in between. Generation adds one row per generated token: the row it was
// picked from, the end-of-sequence token's included; prompt rows are not part of it.
class LogitsHash {
 public:
  LogitsHash();
  ~LogitsHash();
  LogitsHash(LogitsHash&&) noexcept;
  LogitsHash& operator=(LogitsHash&&) noexcept;

  void Add(std::span<const float> logits);
  std::string Hex() const;  // 64 hex digits of everything added so far

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace stoch
