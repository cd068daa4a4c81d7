// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/unicode/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/check.h"

namespace stoch {
namespace {

using CodePoints = std::vector<utf8proc_int32_t>;

int CombiningClass(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

// The canonical decomposition, marks in no order yet.
CodePoints Decomposed(std::string_view text) {
  CodePoints codes;
  codes.reserve(text.size());
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (utf8proc_ssize_t left = static_cast<utf8proc_ssize_t>(text.size()); left > 0;) {
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t size = utf8proc_iterate(at, left, &code);
    STOCH_CHECK(size > 0);
    at += size;
    left -= size;
    std::array<utf8proc_int32_t, 32> parts;  // four at most, says the standard
    int unused = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        code, parts.data(), static_cast<utf8proc_ssize_t>(parts.size()), UTF8PROC_DECOMPOSE, &unused);
    STOCH_CHECK(count > 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()));
    codes.insert(codes.end(), parts.begin(), parts.begin() + count);
  }
  return codes;
}

// Canonical order: every run of marks by combining class.
void SortMarks(CodePoints& codes) {
  for (auto begin = codes.begin(); begin != codes.end();) {
    if (CombiningClass(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, codes.end(), [](utf8proc_int32_t code) { return CombiningClass(code) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
    begin = end;
  }
}

void AppendNfc(std::string_view text, std::string& out) {
  CodePoints codes = Decomposed(text);
  SortMarks(codes);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  STOCH_CHECK(count >= 0);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    std::array<utf8proc_uint8_t, 4> bytes;
    const utf8proc_ssize_t size = utf8proc_encode_char(codes[static_cast<size_t>(i)], bytes.data());
    out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(size));
  }
}

bool IsAscii(char c) { return (static_cast<unsigned char>(c) & 0x80) == 0; }

}  // namespace

std::string ToNfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t begin = 0; begin < text.size();) {
    // ASCII is as it should be, and nothing in front of it changes with it; the last one may take a mark.
    size_t ascii_end = begin;
    while (ascii_end < text.size() && IsAscii(text[ascii_end])) ++ascii_end;
    if (ascii_end == text.size()) return out.append(text.substr(begin));
    const size_t piece = ascii_end > begin ? ascii_end - 1 : begin;
    size_t end = ascii_end;
    while (end < text.size() && !IsAscii(text[end])) ++end;
    out.append(text.substr(begin, piece - begin));
    AppendNfc(text.substr(piece, end - piece), out);
    begin = end;
  }
  return out;
}

}  // namespace stoch
