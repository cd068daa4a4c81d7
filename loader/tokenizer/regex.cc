// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

struct FreePcre {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// PCRE2's \s under PCRE2_UCP also takes U+180E, which stopped being White_Space in Unicode 6.3 and stands inside words
// of Mongolian. Writes White_Space out instead (Z and the controls), but for \S inside a class, which has no such form.
std::string WithUnicodeSpace(std::string_view pattern) {
  constexpr std::string_view kSpace = R"(\p{Z}\t-\r\x{85})";
  std::string result;
  bool in_class = false;
  size_t class_begin = 0;  // where a ] would be a member of the class, not its end
  for (size_t pos = 0; pos < pattern.size(); ++pos) {
    const char c = pattern[pos];
    if (c == '\\' && pos + 1 < pattern.size()) {
      const char escaped = pattern[++pos];
      if (escaped == 's') {
        result.append(in_class ? "" : "[").append(kSpace).append(in_class ? "" : "]");
      } else if (escaped == 'S' && !in_class) {
        result.append("[^").append(kSpace).append("]");
      } else {
        result.append({c, escaped});
      }
      continue;
    }
    if (!in_class && c == '[') {
      in_class = true;
      class_begin = pos + (pattern.substr(pos + 1).starts_with('^') ? 2 : 1);
    } else if (in_class && c == ']' && pos != class_begin) {
      in_class = false;
    }
    result += c;
  }
  return result;
}

constexpr size_t kFreeSteps = 512;        // of every match
constexpr size_t kBaseSteps = 4'000'000;  // of a text, beyond those
constexpr size_t kStepsPerByte = 64;
constexpr uint32_t kMaxHeapKib = 256 << 10;  // of one match

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, FreePcre> code;
};

Regex::Regex(std::string_view pattern, const std::string& where) : code_(std::make_unique<Code>()), where_(where) {
  constexpr size_t kMaxPatternBytes = 1 << 16;
  if (pattern.size() > kMaxPatternBytes) {
    throw InvalidInput(where + ": the pattern has " + std::to_string(pattern.size()) + " bytes, more than " +
                       std::to_string(kMaxPatternBytes));
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  const std::string source = WithUnicodeSpace(pattern);
  code_->code.reset(pcre2_compile(Units(source), source.size(), options, &error, &offset, nullptr));
  if (code_->code == nullptr) {
    const std::string_view rest = source;
    throw InvalidInput(where + ": the pattern " + Quoted(pattern) + " does not compile: " + ErrorText(error) +
                       " before " + Quoted(rest.substr(std::min<size_t>(offset, rest.size()))));
  }
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);  // a platform without it interprets
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

std::vector<TextSpan> Regex::FindAll(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, FreePcre> data(
      pcre2_match_data_create_from_pattern(code_->code.get(), nullptr));
  const std::unique_ptr<pcre2_match_context, FreePcre> context(pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) throw std::bad_alloc();
  pcre2_set_heap_limit(context.get(), kMaxHeapKib);
  // Of the whole text. A run of white space backtracks once per character; what needs far more is broken or hostile.
  size_t budget = kBaseSteps + kStepsPerByte * text.size();
  const auto match = [&](size_t pos, size_t steps) {
    pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX)));
    const int found =
        pcre2_match(code_->code.get(), Units(text), text.size(), pos, PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
    // The interpreter keeps its stack on the heap.
    return pcre2_match(code_->code.get(), Units(text), text.size(), pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                       context.get());
  };

  std::vector<TextSpan> matches;
  for (size_t pos = 0; pos < text.size();) {
    // PCRE2 does not say how many steps a match took, only that a limit was too low: most words need few, and what
    // needs more is tried with ever higher limits, which the budget pays for.
    int found = match(pos, kFreeSteps);
    for (size_t steps = 8 * kFreeSteps; found == PCRE2_ERROR_MATCHLIMIT && budget > 0; steps *= 8) {
      steps = std::min(steps, budget);
      budget -= steps;
      found = match(pos, steps);
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) throw InvalidInput(where_ + ": splitting the text failed: " + ErrorText(found));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    const size_t begin = bounds[0];
    const size_t end = bounds[1];
    if (begin < end && begin >= pos) {
      matches.push_back({begin, end});
      pos = end;
    } else {  // an empty match, or one moved by \K: go on behind the next character
      pos = std::max(pos, std::min(begin, text.size()));
      if (pos < text.size()) pos += Utf8CharSize(text, pos);
    }
  }
  return matches;
}

}  // namespace stoch
