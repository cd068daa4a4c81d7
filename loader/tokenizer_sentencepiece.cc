// SentencePiece models through libsentencepiece, whose headers end here.
#include <sentencepiece_processor.h>

#include <charconv>

#include "kernels/base/error.h"
#include "loader/tokenizer_base.h"
#include "loader/tokenizer_kinds.h"
#include "loader/tokenizer_sentencepiece_check.h"
#include "loader/tokenizer_split.h"
#include "loader/tokenizer_text.h"

namespace stoch {
namespace {

using sentencepiece::SentencePieceProcessor;

std::unique_ptr<SentencePieceProcessor> LoadProcessor(const std::string& content, const std::string& where) {
  auto processor = std::make_unique<SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto(content);
  if (!status.ok()) throw InvalidInput(where + ": not a usable SentencePiece model: " + status.ToString());
  return processor;
}

// The same model without the space in front of the text. Protobuf merges a repeated submessage into the one before
// it, so appending normalizer_spec { add_dummy_prefix: false } changes just that.
std::string WithoutPrefix(std::string content) { return content.append("\x1a\x02\x18\x00", 4); }

char ByteOfPiece(const std::string& piece) {  // "<0x0A>"
  int byte = 0;
  std::from_chars(piece.data() + 3, piece.data() + 5, byte, 16);
  return static_cast<char>(byte);
}

PrefixScheme SchemeOf(const SentencePieceFacts& facts, const TokenizerSettings& settings) {
  if (!facts.add_dummy_prefix || !settings.add_prefix_space.value_or(true)) return PrefixScheme::kNever;
  return settings.legacy.value_or(true) ? PrefixScheme::kAlways : PrefixScheme::kFirst;
}

TokenizerParts MakeParts(const SentencePieceProcessor& processor, const std::string& where, PrefixScheme scheme,
                         const TokenizerSettings& settings) {
  TokenizerParts parts;
  parts.kind = "sentencepiece";
  parts.where = where;
  parts.strips_leading_space = scheme != PrefixScheme::kNever;
  std::vector<AddedToken> reserved;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const std::string& piece = processor.IdToPiece(id);
    if (processor.IsControl(id) || processor.IsUnknown(id)) {
      parts.tokens.push_back({Token::Kind::kSpecial, piece});
      reserved.push_back({piece, id, true});
    } else if (processor.IsByte(id)) {
      parts.tokens.push_back({Token::Kind::kText, std::string(1, ByteOfPiece(piece))});
    } else {
      parts.tokens.push_back({Token::Kind::kText, ReplaceAll(piece, "\u2581", " ")});
    }
  }
  parts.added = MergeAdded(settings.added, reserved);
  for (AddedToken& token : parts.added) token.normalized = false;  // there is no normalizer outside the library
  if (processor.bos_id() >= 0) parts.bos = processor.bos_id();
  if (processor.pad_id() >= 0) parts.pad = processor.pad_id();
  if (processor.eos_id() >= 0) parts.eos.push_back(processor.eos_id());
  return parts;
}

class SentencePieceTokenizer final : public TokenizerBase {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceProcessor> processor, std::string content,
                         const std::string& where, PrefixScheme scheme, const TokenizerSettings& settings)
      : TokenizerBase(MakeParts(*processor, where, scheme, settings), settings),
        with_prefix_(std::move(processor)),
        scheme_(scheme) {
    if (scheme != PrefixScheme::kAlways) without_prefix_ = LoadProcessor(WithoutPrefix(std::move(content)), where);
  }

 private:
  void EncodeText(std::string_view text, bool first, bool /*parse_special*/, std::vector<int32_t>& ids) const override {
    const bool prefix = scheme_ == PrefixScheme::kAlways || (scheme_ == PrefixScheme::kFirst && first);
    std::vector<int> encoded;
    const auto status = (prefix ? with_prefix_ : without_prefix_)->Encode(text, &encoded);
    if (!status.ok()) throw InvalidInput("the text cannot be encoded: " + status.ToString());
    ids.insert(ids.end(), encoded.begin(), encoded.end());
  }

  std::unique_ptr<SentencePieceProcessor> with_prefix_;     // as the model file says
  std::unique_ptr<SentencePieceProcessor> without_prefix_;  // null where it is never needed
  PrefixScheme scheme_;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeSentencePieceTokenizer(std::string content, const std::string& where,
                                                      const TokenizerSettings& settings) {
  const SentencePieceFacts facts = CheckSentencePieceModel(content, where);
  auto processor = LoadProcessor(content, where);
  return std::make_unique<SentencePieceTokenizer>(std::move(processor), std::move(content), where,
                                                  SchemeOf(facts, settings), settings);
}

}  // namespace stoch
