// SPDX-License-Identifier: Apache-2.0
// Tokenizer files small enough to follow by hand, and tokenizer.json files made from real models.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "loader/tokenizer/settings.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch::test {

// tokenizer.json of SentencePiece kind (Llama-2): <unk> 0, <s> 1, </s> 2, bytes 3..258, then by name below.
// Merges, in order: a b, ▁ a, ▁a b, ▁ ab, ▁ ▁. Normalizer: ▁ in front, spaces to ▁.
nlohmann::json SentencePieceJson();
inline constexpr int32_t kSpace = 259, kA = 260, kB = 261, kSpaceA = 262, kAb = 263, kSpaceAb = 264, kSpaces = 265;
inline constexpr int32_t ByteToken(int byte) { return 3 + byte; }

// tokenizer.json of byte-level kind (Llama-3): bytes 0..255, then he, ll, hell, and " h"; specials from 260 on:
// <|begin_of_text|>, <|end_of_text|>, <|start_header_id|>, <|end_header_id|>, <|eot_id|>.
nlohmann::json ByteLevelJson();
inline constexpr int32_t kHe = 256, kLl = 257, kHell = 258, kSpaceH = 259;
inline constexpr int32_t kBegin = 260, kEnd = 261, kStartHeader = 262, kEndHeader = 263, kEot = 264;

// The bytes 0..255 in order, then he, ll, hell, as tiktoken lines.
std::string TiktokenLines();
std::string Base64(std::string_view bytes);

// One piece of a SentencePiece model; type 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
struct Piece {
  std::string text;
  float score = 0;
  int type = 1;
};
struct SentencePieceModel {
  std::vector<Piece> pieces;  // SentencePiecePieces() if empty
  int model_type = 2;         // BPE
  bool byte_fallback = true;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = false;
  std::string charsmap;
  std::string extra;  // appended to the file
};
// The vocabulary of SentencePieceJson.
std::vector<Piece> SentencePiecePieces();
std::string SentencePieceFile(const SentencePieceModel& model);

// The tokenizer.json that Hugging Face's converter makes of a Llama-3 tiktoken model.
std::string ByteLevelJsonOf(std::string_view tiktoken_lines);

// What LoadTokenizer makes of the content alone.
std::unique_ptr<Tokenizer> FromJson(const nlohmann::json& json, const TokenizerSettings& settings = {});

using Ids = std::vector<int32_t>;
// Ids without BOS; special tokens are recognised in the second.
Ids Plain(const Tokenizer& tokenizer, std::string_view text);
Ids Parsed(const Tokenizer& tokenizer, std::string_view text);

// The message of the InvalidInput that body throws; fails the test if it throws none or says more than one line.
std::string Refusal(const std::function<void()>& body);

}  // namespace stoch::test
