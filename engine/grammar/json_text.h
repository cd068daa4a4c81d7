// SPDX-License-Identifier: Apache-2.0
// What no JSON text has, whatever a schema's grammar allows: raw control characters in strings, halves of surrogate pairs, and
// bytes of strings that are no UTF-8.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "loader/tokenizer/tokenizer.h"

namespace stoch {

// Where a JSON text is, byte by byte, as far as that matters here.
class JsonText {
 public:
  enum class At : uint8_t {
    kOutside,    // of strings
    kInside,     // of a string
    kEscape,     // after a backslash
    kUnicode,    // after \u
    kSurrogate,  // after \ud
    // After the first byte of a character of several, of which not every second one is UTF-8.
    kAfterE0,
    kAfterED,
    kAfterF0,
    kAfterF4,
  };
  static constexpr size_t kPlaces = 9;

  explicit JsonText(At at = At::kOutside) : at_(at) {}
  // Returns: whether JSON may have these bytes here. Where not, the place is not defined.
  bool Push(std::string_view bytes);
  At at() const { return at_; }

 private:
  bool PushByte(unsigned char byte);

  At at_;
};

// For each place, the tokens of a vocabulary that JSON has there.
class JsonTextMasks {
 public:
  JsonTextMasks(const Tokenizer& tokenizer, int64_t vocab_size);
  // Takes the others out of a mask.
  void Restrict(JsonText::At at, std::span<uint32_t> mask) const;

 private:
  std::array<std::vector<uint32_t>, JsonText::kPlaces> allowed_;
};

}  // namespace stoch
