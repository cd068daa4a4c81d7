// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/notation.h"

#include <algorithm>
#include <cctype>

#include "loader/quote.h"

namespace stoch {
namespace {

constexpr uint32_t kLastCharacter = 0x10ffff;
constexpr uint32_t kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;

bool IsHex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }
bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

class Scan {
 public:
  Scan(std::string_view text, Notation notation) : text_(text), notation_(notation) {}

  std::string WhyMisread() {
    while (at_ < text_.size() && why_.empty()) Step();
    return why_;
  }

 private:
  char Now() const { return text_[at_]; }
  bool in_literal() const { return in_class_ || in_string_; }

  void Step() {
    if (Now() == '\\' && (notation_ == Notation::kRegex || in_literal())) return Escape();
    if (!in_literal() && Now() == '{') return Braces();
    if (notation_ == Notation::kEbnf) {
      if (!in_literal() && Now() == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        return;
      }
      if (!in_class_ && Now() == '"') in_string_ = !in_string_;
    }
    if (!in_literal() && Now() == '[') {
      in_class_ = true;
      excludes_ = text_.substr(at_).starts_with("[^");
    } else if (in_class_ && Now() == ']') {
      in_class_ = false;
    }
    ++at_;
  }

  // Hexadecimal digits from `begin` on, `most` of them at most.
  void Hexadecimal(size_t begin, size_t most) {
    uint64_t value = 0;
    size_t end = begin;
    for (; end < text_.size() && end - begin < most && IsHex(text_[end]); ++end) {
      const auto digit = static_cast<uint64_t>(std::stoi(std::string(1, text_[end]), nullptr, 16));
      value = std::min<uint64_t>(value * 16 + digit, uint64_t{1} << 32);
    }
    const std::string escape = Quoted(text_.substr(at_, end - at_));
    if (value > kLastCharacter) why_ = escape + " is beyond the last character, U+10FFFF";
    const bool is_half = value >= kFirstSurrogate && value <= kLastSurrogate;
    if (is_half && !(in_class_ && excludes_)) {
      why_ = escape + " is half of a surrogate pair, and no character: write the character itself";
    }
    at_ = std::max(end, begin);
  }

  void Escape() {
    constexpr size_t kShort = 4, kLong = 8;
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with("\\x")) return Hexadecimal(at_ + 2, text_.size());
    if (rest.starts_with("\\u{") && notation_ == Notation::kRegex) return Hexadecimal(at_ + 3, text_.size());
    if (rest.starts_with("\\u")) return Hexadecimal(at_ + 2, kShort);
    if (rest.starts_with("\\U")) return Hexadecimal(at_ + 2, kLong);
    at_ += 2;
  }

  // Numbers up to the closing brace.
  void Braces() {
    const size_t begin = at_;
    int64_t count = 0;
    for (++at_; at_ < text_.size() && Now() != '}'; ++at_) {
      count = IsDigit(Now()) ? std::min(count * 10 + (Now() - '0'), kMostRepeats + 1) : 0;
      if (count <= kMostRepeats) continue;
      const size_t end = std::min(text_.find('}', begin), text_.size() - 1) + 1;
      why_ = Quoted(text_.substr(begin, end - begin)) + " repeats too often; allowed are " +
             std::to_string(kMostRepeats) + " times";
      return;
    }
  }

  std::string_view text_;
  Notation notation_;
  size_t at_ = 0;
  bool in_class_ = false, excludes_ = false;
  bool in_string_ = false;  // of GBNF
  std::string why_;
};

}  // namespace

std::string WhyMisread(std::string_view text, Notation notation) { return Scan(text, notation).WhyMisread(); }

}  // namespace stoch
