// SPDX-License-Identifier: Apache-2.0
// Unicode regular expressions of tokenizer files, behind one wrapper (PCRE2).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace stoch {

struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
};

// A compiled pattern. Immutable; threads: safe.
class Regex {
 public:
  // Compiles `pattern` with Unicode classes; ^ and $ are those of a line, and \s is White_Space, as in the library
  // (Oniguruma) that tokenizer.json patterns are written for.
  // Errors: InvalidInput naming where and what is wrong.
  Regex(std::string_view pattern, const std::string& where);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // The matches that are not empty, left to right, none overlapping.
  // Requires: well-formed UTF-8.
  // Errors:   InvalidInput if the pattern needs more steps over the whole text, or more memory, than the bounds allow.
  std::vector<TextSpan> FindAll(std::string_view text) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string where_;
};

}  // namespace stoch
