// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in streamed text without ever letting a part of one through.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace stoch {

// Feed text with Push; it returns what is certain not to belong to a stop string. Empty stop strings are ignored.
// Costs a few steps per byte of text and stop string, whatever the strings are.
// Source: Knuth, Morris, Pratt: Fast pattern matching in strings (1977).
class StopStrings {
 public:
  StopStrings() = default;
  explicit StopStrings(std::vector<std::string> stops);

  // Text that can be shown now. Once stopped(), "" always: the earliest stop string and all after it is dropped.
  std::string Push(std::string_view text);
  // What was held back, at the end of the stream.
  std::string Flush();
  bool stopped() const { return stopped_; }

 private:
  struct Stop {
    std::string text;
    std::vector<uint32_t> border;  // [n]: longest proper prefix of text that ends its first n + 1 bytes
    uint32_t matched = 0;          // how much of it the text so far ends with
  };
  // Whether `c` completes it.
  static bool Advance(Stop& stop, char c);

  std::vector<Stop> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace stoch
