// SPDX-License-Identifier: Apache-2.0
// The parts of a tokenizer.json, checked and ready to use.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "loader/tokenizer/base.h"
#include "loader/tokenizer/bpe.h"
#include "loader/tokenizer/normalize.h"
#include "loader/tokenizer/split.h"

namespace stoch {

// Lets a map of strings be searched by view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// The BPE model. Byte-level: the words of `vocabulary` are raw bytes; otherwise text as written in the file.
struct BpeModel {
  Vocabulary vocabulary;
  std::unordered_map<uint64_t, BpeMerge> merges;  // by PairKey
  std::optional<int32_t> unk;
  bool fuse_unk = false;
  bool ignore_merges = false;  // a word that is a token is that token
  bool byte_level = false;
  std::string word_mark;           // not empty: no token spans words marked so, each can be merged on its own
  std::array<int32_t, 256> bytes;  // byte-level: single bytes; else the fallback tokens "<0x0A>"; -1: none
};

inline uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct HuggingFaceFile {
  TextNormalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  TokenizerParts parts;
};

// Errors: InvalidInput for anything broken, inconsistent, or of a kind that Llama checkpoints do not have.
HuggingFaceFile ParseHuggingFaceFile(std::string_view content, const std::string& where,
                                     const TokenizerSettings& settings);

}  // namespace stoch
