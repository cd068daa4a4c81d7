// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: added tokens, normalizer, pre-tokenizer and BPE in the order of huggingface/tokenizers.
#include <unordered_map>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/base.h"
#include "loader/tokenizer/hf_file.h"
#include "loader/tokenizer/kinds.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

// Tokens that are looked for in the normalized text, by their normalized form.
std::vector<AddedToken> Normalized(const std::vector<AddedToken>& added, const TextNormalizer& normalizer) {
  std::vector<AddedToken> result;
  for (AddedToken token : added) {
    if (!token.normalized) continue;
    token.content = normalizer.Apply(token.content);
    result.push_back(std::move(token));
  }
  return result;
}

TokenizerParts WithFinder(const HuggingFaceFile& file) {
  TokenizerParts parts = file.parts;
  parts.find = [&vocabulary = file.model.vocabulary](std::string_view written) -> std::optional<int32_t> {
    const auto found = vocabulary.find(written);
    return found == vocabulary.end() ? std::nullopt : std::optional(found->second);
  };
  return parts;
}

class HuggingFaceTokenizer final : public TokenizerBase {
 public:
  HuggingFaceTokenizer(HuggingFaceFile file, const TokenizerSettings& settings)
      : TokenizerBase(WithFinder(file), settings),
        normalizer_(std::move(file.normalizer)),
        normalized_added_(Normalized(file.parts.added, normalizer_)),
        pre_tokenizer_(std::move(file.pre_tokenizer)),
        model_(std::move(file.model)) {}

 private:
  void EncodeText(std::string_view text, bool first, const EncodeOptions& options,
                  std::vector<int32_t>& ids) const override {
    std::string owned;
    if (!normalizer_.empty()) text = owned = normalizer_.Apply(text);
    for (const TextSegment& segment : normalized_added_.Split(text, options.parse_special)) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
        continue;
      }
      std::string room;
      const std::string_view piece = WithoutRemoved(segment.text, options, &room);
      if (piece.empty()) continue;
      const PreTokenizer::Words words = pre_tokenizer_.Split(piece, first && segment.begin == 0);
      for (const std::string_view word : words.words) EncodeWord(word, ids);
    }
  }

  void EncodeWord(std::string_view word, std::vector<int32_t>& ids) const {
    if (model_.ignore_merges) {
      if (const auto whole = model_.vocabulary.find(word); whole != model_.vocabulary.end()) {
        ids.push_back(whole->second);
        return;
      }
    }
    if (model_.word_mark.empty()) {
      Merge(word, ids);
      return;
    }
    // A Llama-2 text is one word to its tokenizer.json; merged in parts, each one once, it takes a fifth of the time.
    std::unordered_map<std::string_view, std::vector<int32_t>> known;
    for (size_t begin = 0, end = 0; begin < word.size(); begin = end) {
      end = MarkedWordEnd(word, begin, model_.word_mark);
      const auto [entry, fresh] = known.try_emplace(word.substr(begin, end - begin));
      if (fresh) Merge(entry->first, entry->second);
      ids.insert(ids.end(), entry->second.begin(), entry->second.end());
    }
  }

  void Merge(std::string_view word, std::vector<int32_t>& ids) const {
    std::vector<BpeSymbol> symbols = model_.byte_level ? Bytes(word) : Characters(word);
    const auto find_merge = [&](const BpeSymbol& left, const BpeSymbol& right) -> std::optional<BpeMerge> {
      const auto found = model_.merges.find(PairKey(left.id, right.id));
      return found == model_.merges.end() ? std::nullopt : std::optional(found->second);
    };
    MergeSymbols(symbols, find_merge, ids);
  }

  std::vector<BpeSymbol> Bytes(std::string_view word) const {
    for (const char c : word) {
      if (model_.bytes[static_cast<uint8_t>(c)] < 0) NoToken(word);
    }
    return ByteSymbols(word, model_.bytes);
  }

  // One symbol per character; characters without a token become bytes, or else the unknown token.
  std::vector<BpeSymbol> Characters(std::string_view word) const {
    std::vector<BpeSymbol> symbols;
    const auto add = [&](int32_t id, size_t begin, size_t size) {
      const auto at = static_cast<int32_t>(symbols.size());
      if (at > 0) symbols.back().next = at;
      symbols.push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(size), at - 1, -1});
    };
    bool after_unk = false;
    for (size_t pos = 0, size = 0; pos < word.size(); pos += size) {
      size = Utf8CharSize(word, pos);
      const std::string_view character = word.substr(pos, size);
      if (const auto found = model_.vocabulary.find(character); found != model_.vocabulary.end()) {
        add(found->second, pos, size);
        after_unk = false;
      } else if (HasBytes(character)) {
        for (size_t i = 0; i < size; ++i) add(model_.bytes[static_cast<uint8_t>(character[i])], pos + i, 1);
        after_unk = false;
      } else if (!model_.unk) {
        NoToken(character);
      } else if (after_unk && model_.fuse_unk) {
        symbols.back().size += static_cast<uint32_t>(size);
      } else {
        add(*model_.unk, pos, size);
        after_unk = true;
      }
    }
    return symbols;
  }

  bool HasBytes(std::string_view character) const {
    for (const char c : character) {
      if (model_.bytes[static_cast<uint8_t>(c)] < 0) return false;
    }
    return true;
  }

  [[noreturn]] static void NoToken(std::string_view text) {
    throw InvalidInput("the text has " + Quoted(text) + ", for which the tokenizer has no token");
  }

  TextNormalizer normalizer_;
  AddedTokenFinder normalized_added_;
  PreTokenizer pre_tokenizer_;
  BpeModel model_;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeHuggingFaceTokenizer(std::string_view content, const std::string& where,
                                                    const TokenizerSettings& settings) {
  return std::make_unique<HuggingFaceTokenizer>(ParseHuggingFaceFile(content, where, settings), settings);
}

}  // namespace stoch
