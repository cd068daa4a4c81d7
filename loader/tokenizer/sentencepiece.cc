// SPDX-License-Identifier: Apache-2.0
// SentencePiece models through libsentencepiece, whose headers end here.
#include <sentencepiece_processor.h>

#include <unordered_map>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/base.h"
#include "loader/tokenizer/kinds.h"
#include "loader/tokenizer/sentencepiece_check.h"
#include "loader/tokenizer/split.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

using sentencepiece::SentencePieceProcessor;

constexpr std::string_view kSpace = "\u2581";  // how pieces write a space

std::unique_ptr<SentencePieceProcessor> LoadProcessor(const std::string& content, const std::string& where) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto(content);
  if (!status.ok()) throw InvalidInput(where + ": not a usable SentencePiece model: " + Quoted(status.ToString()));
  return processor;
}

// Protobuf merges a repeated submessage into the one before it, so appending a normalizer_spec changes just the fields
// it names: no space in front of the text, and for kBare spaces left as they are.
constexpr std::string_view kNoPrefix{"\x1a\x02\x18\x00", 4};
constexpr std::string_view kBare{"\x1a\x04\x18\x00\x20\x00", 6};

PrefixScheme SchemeOf(const SentencePieceFacts& facts, const TokenizerSettings& settings) {
  if (!facts.add_dummy_prefix || !settings.add_prefix_space.value_or(true)) return PrefixScheme::kNever;
  return settings.legacy.value_or(true) ? PrefixScheme::kAlways : PrefixScheme::kFirst;
}

TokenizerParts MakeParts(const SentencePieceProcessor& processor, const std::string& where, PrefixScheme scheme,
                         bool normalizes, const TokenizerSettings& settings) {
  TokenizerParts parts;
  parts.kind = "sentencepiece";
  parts.where = where;
  parts.add_bos = settings.add_bos.value_or(true);
  parts.replacement = Replacement::kByte;
  parts.strips_leading_space = scheme != PrefixScheme::kNever;
  std::vector<AddedToken> reserved;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const std::string& piece = processor.IdToPiece(id);
    if (processor.IsControl(id) || processor.IsUnknown(id)) {
      parts.tokens.push_back({Token::Kind::kSpecial, piece});
      reserved.push_back({piece, id, true});
    } else if (processor.IsByte(id)) {
      parts.tokens.push_back({Token::Kind::kText, std::string(1, FallbackByte(piece).value())});
    } else {
      parts.tokens.push_back({Token::Kind::kText, ReplaceAll(piece, kSpace, " ")});
    }
  }
  parts.find = [&processor](std::string_view written) -> std::optional<int32_t> {
    const int id = processor.PieceToId(written);
    return processor.IdToPiece(id) == written ? std::optional(id) : std::nullopt;
  };
  parts.added = MergeAdded(std::move(reserved), settings);
  // Where every text gets a space in front, so does a token that is looked for as such a text (transformers, legacy).
  for (AddedToken& token : parts.added) {
    token.normalized = token.normalized && scheme == PrefixScheme::kAlways && normalizes;
    if (token.normalized) token.text = " " + token.content;
  }
  if (processor.bos_id() >= 0) parts.bos = processor.bos_id();
  if (processor.pad_id() >= 0) parts.pad = processor.pad_id();
  if (processor.eos_id() >= 0) parts.eos.push_back(processor.eos_id());
  return parts;
}

// The tokens to look for in a text whose spaces are marked.
std::vector<AddedToken> Marked(const std::vector<AddedToken>& added) {
  std::vector<AddedToken> marked;
  for (AddedToken token : added) {
    if (!token.normalized) continue;
    token.content = ReplaceAll(" " + token.content, " ", kSpace);
    marked.push_back(std::move(token));
  }
  return marked;
}

// What the library's normalizer makes of spaces at the ends and of runs of them.
std::string WithoutExtraSpaces(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool extra = c == ' ' && (result.empty() || result.back() == ' ');
    if (!extra) result += c;
  }
  while (result.ends_with(' ') || result.ends_with(kSpace))
    result.resize(result.size() - (result.back() == ' ' ? 1 : 3));
  return result;
}

class SentencePieceTokenizer final : public TokenizerBase {
 public:
  SentencePieceTokenizer(const TokenizerParts& parts, std::unique_ptr<SentencePieceProcessor> processor,
                         const std::string& content, const SentencePieceFacts& facts, const TokenizerSettings& settings)
      : TokenizerBase(parts, settings),
        marked_added_(Marked(parts.added)),
        facts_(facts),
        scheme_(SchemeOf(facts, settings)),
        as_written_(facts.WordsAreIndependent() ? nullptr : std::move(processor)),
        plain_(LoadProcessor(content + std::string(facts.WordsAreIndependent() ? kBare : kNoPrefix), parts.where)) {}

 private:
  void EncodeText(std::string_view text, bool first, const EncodeOptions& options,
                  std::vector<int32_t>& ids) const override {
    const bool prefix = scheme_ == PrefixScheme::kAlways || (scheme_ == PrefixScheme::kFirst && first);
    if (facts_.WordsAreIndependent()) {
      EncodeMarked(text, prefix, options, ids);
    } else {
      std::string room;
      const std::vector<int> encoded = Call(prefix ? *as_written_ : *plain_, WithoutRemoved(text, options, &room));
      ids.insert(ids.end(), encoded.begin(), encoded.end());
    }
  }

  // The library takes 3.7 s for the 1.3 MB of WikiText-2's test split in one piece; word by word, each one once, 0.3 s.
  void EncodeMarked(std::string_view text, bool prefix, const EncodeOptions& options, std::vector<int32_t>& ids) const {
    const std::string spaced = facts_.remove_extra_whitespaces ? WithoutExtraSpaces(text) : std::string(text);
    if (spaced.empty()) return;
    const std::string marked = ReplaceAll((prefix ? " " : "") + spaced, " ", kSpace);
    for (const TextSegment& segment : marked_added_.Split(marked, options.parse_special)) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else {
        std::string room;
        EncodeWords(WithoutRemoved(segment.text, options, &room), ids);
      }
    }
  }

  void EncodeWords(std::string_view marked, std::vector<int32_t>& ids) const {
    std::unordered_map<std::string_view, std::vector<int>> known;
    for (size_t begin = 0, end = 0; begin < marked.size(); begin = end) {
      end = MarkedWordEnd(marked, begin, kSpace);
      const std::string_view word = marked.substr(begin, end - begin);
      const auto [entry, fresh] = known.try_emplace(word);
      if (fresh) entry->second = Call(*plain_, word);
      ids.insert(ids.end(), entry->second.begin(), entry->second.end());
    }
  }

  static std::vector<int> Call(const SentencePieceProcessor& processor, std::string_view text) {
    std::vector<int> ids;
    const auto status = processor.Encode(text, &ids);
    if (!status.ok()) throw InvalidInput("the text cannot be encoded: " + Quoted(status.ToString()));
    return ids;
  }

  AddedTokenFinder marked_added_;
  SentencePieceFacts facts_;
  PrefixScheme scheme_;
  std::unique_ptr<SentencePieceProcessor> as_written_;  // null where words are encoded one by one
  std::unique_ptr<SentencePieceProcessor> plain_;       // without prefix; bare where words are encoded one by one
};

}  // namespace

std::unique_ptr<Tokenizer> MakeSentencePieceTokenizer(const std::string& content, const std::string& where,
                                                      const TokenizerSettings& settings) {
  const SentencePieceFacts facts = CheckSentencePieceModel(content, where);
  auto processor = LoadProcessor(content, where);
  const TokenizerParts parts =
      MakeParts(*processor, where, SchemeOf(facts, settings), facts.WordsAreIndependent(), settings);
  return std::make_unique<SentencePieceTokenizer>(parts, std::move(processor), content, facts, settings);
}

}  // namespace stoch
