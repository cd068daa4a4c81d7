// SPDX-License-Identifier: Apache-2.0
// Finds what xgrammar would read in another way than it is written: escapes of no character, and counts that 32 bits do not
// hold.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stoch {

enum class Notation : uint8_t { kRegex, kEbnf };

// The most that a count in braces may be: more characters than an answer has in any context.
inline constexpr int64_t kMostRepeats = 1'000'000;

// Why a regular expression or a grammar in GBNF notation would be read in another way than it is written, "" if it is not:
// an escape beyond U+10FFFF, or of half of a surrogate pair but in a class that excludes it, would be written as bytes that
// are no UTF-8; a count beyond kMostRepeats is cut to 32 bits. What is no grammar at all says xgrammar.
std::string WhyMisread(std::string_view text, Notation notation);

}  // namespace stoch
