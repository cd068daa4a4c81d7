// SPDX-License-Identifier: Apache-2.0
// UTF-8 of prompts and tokens: strict where text comes in, forgiving where bytes go out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stoch {

// The length of the well-formed character (RFC 3629: no overlong form, no surrogate) at `pos`; 0 where the bytes are
// not one. Requires: pos < text.size().
size_t Utf8CharSize(std::string_view text, size_t pos);

// Errors: InvalidInput naming `what` and the byte offset if text is not well-formed UTF-8.
void CheckUtf8(std::string_view text, std::string_view what);

// The code point of the well-formed character at pos.
char32_t Utf8CodePoint(std::string_view text, size_t pos);

// How many U+FFFD stand for bytes that are no character.
enum class Replacement {
  kPart,  // one for every maximal ill-formed part, as Rust's String::from_utf8_lossy
  kByte,  // one for every byte, as SentencePiece (string_util::DecodeUTF8)
};

// Appends to `out` the complete characters of `bytes`, and U+FFFD for what is none.
// Returns how many bytes were used: all of them if `final`, else all but a character whose end may still come.
size_t AppendUtf8Lossy(std::string_view bytes, bool final, std::string& out,
                       Replacement replacement = Replacement::kPart);

// The byte that a token named like "<0x0A>" stands for in vocabularies with byte fallback; none for other names.
std::optional<char> FallbackByte(std::string_view token);

// The White_Space property of Unicode.
bool IsUnicodeSpace(char32_t c);

// Text without the white space around it, where Python's str.strip() sees it (White_Space and U+001C..U+001F).
std::string_view StripLikePython(std::string_view text);

// Replaces every `from` (not empty) in text.
// Errors: InvalidInput if the result has more than max_bytes bytes.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to,
                       size_t max_bytes = std::string_view::npos);

// Words of text whose spaces are written `mark`: marks, then everything up to the next mark.
// Where the word that begins at `begin` ends.
size_t MarkedWordEnd(std::string_view text, size_t begin, std::string_view mark);
// Whether a token goes on into a next word. Where none does, words can be encoded one by one.
bool SpansMarkedWords(std::string_view token, std::string_view mark);

}  // namespace stoch
