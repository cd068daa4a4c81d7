// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/unicode/text.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/error.h"
#include "loader/quote.h"

namespace stoch {
namespace {

uint8_t ByteAt(std::string_view text, size_t pos) { return static_cast<uint8_t>(text[pos]); }

// What the bytes from `pos` on are: `size` bytes that are a character (valid), or the longest start of one.
struct Utf8Part {
  size_t size = 0;
  bool valid = false;
  bool cut = false;  // the text ends inside what may still become a character
};

Utf8Part ScanUtf8(std::string_view text, size_t pos) {
  const uint8_t lead = ByteAt(text, pos);
  if (lead < 0x80) return {1, true, false};
  if (lead < 0xc2 || lead > 0xf4) return {1, false, false};
  const size_t want = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and code points past U+10FFFF (RFC 3629, section 4).
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < want; ++i) {
    if (pos + i == text.size()) return {i, false, true};
    const uint8_t byte = ByteAt(text, pos + i);
    if (byte < (i == 1 ? low : 0x80) || byte > (i == 1 ? high : 0xbf)) return {i, false, false};
  }
  return {want, true, false};
}

bool IsPythonSpace(char32_t c) { return IsUnicodeSpace(c) || (c >= 0x1c && c <= 0x1f); }

}  // namespace

size_t Utf8CharSize(std::string_view text, size_t pos) {
  const Utf8Part part = ScanUtf8(text, pos);
  return part.valid ? part.size : 0;
}

void CheckUtf8(std::string_view text, std::string_view what) {
  for (size_t pos = 0; pos < text.size();) {
    const size_t size = Utf8CharSize(text, pos);
    if (size == 0) {
      throw InvalidInput(std::string(what) + " is not valid UTF-8 at byte " + std::to_string(pos));
    }
    pos += size;
  }
}

std::optional<char> FallbackByte(std::string_view token) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  const bool is_byte =
      token.size() == 6 && token.starts_with("<0x") && is_hex(token[3]) && is_hex(token[4]) && token[5] == '>';
  if (!is_byte) return std::nullopt;
  int byte = 0;
  std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return static_cast<char>(byte);
}

char32_t Utf8CodePoint(std::string_view text, size_t pos) {
  const uint8_t lead = ByteAt(text, pos);
  if (lead < 0x80) return lead;
  const size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  char32_t code = lead & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) code = (code << 6) | (ByteAt(text, pos + i) & 0x3fu);
  return code;
}

size_t AppendUtf8Lossy(std::string_view bytes, bool final, std::string& out, Replacement replacement) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Utf8Part part = ScanUtf8(bytes, pos);
    if (part.cut && !final) break;
    if (part.valid) {
      out.append(bytes.substr(pos, part.size));
    } else {
      const size_t count = replacement == Replacement::kByte ? part.size : 1;
      for (size_t i = 0; i < count; ++i) out.append("\xef\xbf\xbd");
    }
    pos += part.size;
  }
  return pos;
}

bool IsUnicodeSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::string_view StripLikePython(std::string_view text) {
  size_t begin = text.size();
  size_t end = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t size = Utf8CharSize(text, pos);
    const bool space = size != 0 && IsPythonSpace(Utf8CodePoint(text, pos));
    const size_t next = pos + (size == 0 ? 1 : size);
    if (!space) {
      if (begin == text.size()) begin = pos;
      end = next;
    }
    pos = next;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to, size_t max_bytes) {
  std::string result;
  result.reserve(std::min(text.size(), max_bytes));
  const auto append = [&](std::string_view piece) {
    if (piece.size() > max_bytes - result.size()) {
      throw InvalidInput("replacing " + Quoted(from) + " by " + Quoted(to) + " makes more than " +
                         std::to_string(max_bytes) + " bytes of " + std::to_string(text.size()));
    }
    result.append(piece);
  };
  size_t pos = 0;
  for (size_t hit; (hit = text.find(from, pos)) != std::string_view::npos; pos = hit + from.size()) {
    append(text.substr(pos, hit - pos));
    append(to);
  }
  append(text.substr(pos));
  return result;
}

size_t MarkedWordEnd(std::string_view text, size_t begin, std::string_view mark) {
  while (text.substr(begin).starts_with(mark)) begin += mark.size();
  return std::min(text.find(mark, begin), text.size());
}

bool SpansMarkedWords(std::string_view token, std::string_view mark) {
  return MarkedWordEnd(token, 0, mark) != token.size();
}

}  // namespace stoch
