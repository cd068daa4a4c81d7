// SPDX-License-Identifier: Apache-2.0
// sha256 of bytes. Wraps OpenSSL.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace stoch {

class Sha256 {
 public:
  Sha256();
  ~Sha256();

  void Add(std::span<const std::byte> bytes);
  void Add(std::string_view text) { Add(std::as_bytes(std::span(text))); }
  // 64 hex digits. Ends it.
  std::string Hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Hex(std::string_view text);

}  // namespace stoch
