// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/hf_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"
#include "loader/tokenizer/json.h"
#include "loader/tokenizer/limits.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

using nlohmann::json;

// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 onwards, in order.
std::unordered_map<char32_t, char> ByteAlphabet() {
  std::unordered_map<char32_t, char> bytes;
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    bytes.emplace(printable ? static_cast<char32_t>(byte) : next++, static_cast<char>(byte));
  }
  return bytes;
}

// The bytes a token of a byte-level vocabulary stands for; nullopt if it has characters outside the alphabet.
std::optional<std::string> BytesOf(std::string_view token) {
  static const std::unordered_map<char32_t, char> kAlphabet = ByteAlphabet();
  std::string bytes;
  for (size_t pos = 0; pos < token.size(); pos += Utf8CharSize(token, pos)) {
    const auto found = kAlphabet.find(Utf8CodePoint(token, pos));
    if (found == kAlphabet.end()) return std::nullopt;
    bytes += found->second;
  }
  return bytes;
}

// Errors: InvalidInput beginning with `place` for more than max_bytes.
std::string Decoded(std::string text, const TokenDecoder& decoder, size_t max_bytes, const std::string& place) {
  try {
    for (const auto& [from, to] : decoder.replacements) text = ReplaceAll(text, from, to, max_bytes);
  } catch (const InvalidInput& error) {
    throw InvalidInput(place + ": " + error.what());
  }
  return text;
}

std::string FallbackName(int byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
}

const json& Required(const json& object, const char* key, const std::string& where) {
  const json* member = FindMember(object, key);
  if (member == nullptr) throw InvalidInput(where + ": " + key + " is missing");
  return *member;
}

// Ids by the written form of the tokens.
using WrittenIds = std::unordered_map<std::string_view, int32_t>;

// `place` says where the token is named; only called where it is unknown.
template <typename Place>
int32_t IdIn(const WrittenIds& ids, std::string_view token, const Place& place) {
  const auto found = ids.find(token);
  if (found == ids.end()) throw InvalidInput(place() + ": " + Quoted(token) + " is not in the vocabulary");
  return found->second;
}

// "left right", or ["left", "right"]; empty strings for anything else.
std::pair<std::string_view, std::string_view> MergeParts(const json& merge) {
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  return {};
}

void ReadVocab(const json& vocab, const std::string& where, BpeModel& model, std::vector<Token>& tokens,
               const TokenDecoder& decoder) {
  std::array<std::string, 256> fallback;
  for (int byte = 0; byte < 256; ++byte) fallback[static_cast<size_t>(byte)] = FallbackName(byte);
  size_t written_bytes = 0, decoded_bytes = 0;  // of all tokens: the bound is on their sum
  for (const auto& [written, value] : vocab.get_ref<const json::object_t&>()) {
    const std::string place = where + ": " + Quoted(written);
    const auto id = static_cast<size_t>(TokenIdOf(value, place));
    if (id >= tokens.size()) tokens.resize(id + 1);
    if (tokens[id].kind != Token::Kind::kUnused) {
      throw InvalidInput(place + ": id " + std::to_string(id) + " is already that of " + Quoted(tokens[id].text));
    }
    std::string text = written;
    if (decoder.byte_level) {
      if (auto bytes = BytesOf(written)) {
        text = *bytes;
        model.vocabulary.emplace(std::move(*bytes), static_cast<int32_t>(id));
      }
    } else {
      model.vocabulary.emplace(written, static_cast<int32_t>(id));
      written_bytes += written.size();
      text = Decoded(std::move(text), decoder, MaxReplacedBytes(written_bytes) - decoded_bytes, place);
      decoded_bytes += text.size();
    }
    tokens[id] = {Token::Kind::kText, std::move(text)};
  }
  model.bytes.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string name = model.byte_level ? std::string(1, static_cast<char>(byte)) : fallback[byte];
    const auto found = model.vocabulary.find(name);
    if (found == model.vocabulary.end()) continue;
    model.bytes[byte] = found->second;
    if (decoder.byte_fallback) tokens[static_cast<size_t>(found->second)].text.assign(1, static_cast<char>(byte));
  }
}

void ReadMerges(const json& merges, const WrittenIds& ids, const std::string& where, BpeModel& model) {
  ExpectArray(merges, where);
  model.merges.reserve(merges.size());
  std::string merged;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto place = [&] { return where + "[" + std::to_string(rank) + "]"; };
    const auto [left, right] = MergeParts(merges[rank]);
    if (left.empty() || right.empty()) {
      throw InvalidInput(place() + ": expected two tokens, as \"left right\" or a list");
    }
    merged.assign(left).append(right);
    const BpeMerge merge{static_cast<int32_t>(rank), IdIn(ids, merged, place)};
    model.merges.insert_or_assign(PairKey(IdIn(ids, left, place), IdIn(ids, right, place)), merge);
  }
}

// "▁" if merges stay inside words that begin with it. ▁ must be a token itself: unknown characters may be fused.
std::string WordMark(const BpeModel& model) {
  const std::string mark = "\u2581";
  if (model.byte_level || model.ignore_merges || !model.vocabulary.contains(mark)) return "";
  const bool spans = std::any_of(model.vocabulary.begin(), model.vocabulary.end(),
                                 [&](const auto& token) { return SpansMarkedWords(token.first, mark); });
  return spans ? "" : mark;
}

BpeModel ReadModel(const json& object, const std::string& where, const TokenDecoder& decoder,
                   std::vector<Token>& tokens) {
  ExpectObject(object, where);
  const std::string type = StringMember(object, "type", where).value_or("BPE");
  if (type != "BPE") throw InvalidInput(where + ": type: expected BPE, got " + Quoted(type));
  if (const json* dropout = FindMember(object, "dropout"); dropout != nullptr && *dropout != 0) {
    throw InvalidInput(where + ": dropout makes encoding random and is not supported");
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!StringMember(object, affix, where).value_or("").empty()) {
      throw InvalidInput(where + ": " + affix + " is not supported");
    }
  }
  BpeModel model;
  model.byte_level = decoder.byte_level;
  model.fuse_unk = BoolMember(object, "fuse_unk", where).value_or(false);
  model.ignore_merges = BoolMember(object, "ignore_merges", where).value_or(false);
  const json& vocab = Required(object, "vocab", where);
  ExpectObject(vocab, where + ": vocab");
  ReadVocab(vocab, where + ": vocab", model, tokens, decoder);
  WrittenIds ids;
  ids.reserve(vocab.size());
  for (const auto& [written, id] : vocab.get_ref<const json::object_t&>()) ids.emplace(written, id.get<int32_t>());
  ReadMerges(Required(object, "merges", where), ids, where + ": merges", model);
  if (const auto unk = StringMember(object, "unk_token", where)) {
    model.unk = IdIn(ids, *unk, [&] { return where + ": unk_token"; });
  }
  if (!model.byte_level && !BoolMember(object, "byte_fallback", where).value_or(false)) model.bytes.fill(-1);
  model.word_mark = WordMark(model);
  return model;
}

std::vector<AddedToken> ReadAdded(const json& list, const std::string& where) {
  ExpectArray(list, where);
  std::vector<AddedToken> added;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = where + "[" + std::to_string(i) + "]";
    ExpectObject(list[i], place);
    const auto flag = [&](const char* key) { return BoolMember(list[i], key, place).value_or(false); };
    if (flag("single_word")) throw InvalidInput(place + ": single_word is not supported");
    const int32_t id = TokenIdOf(Required(list[i], "id", place), place + ": id");
    const auto content = StringMember(list[i], "content", place);
    if (!content || content->empty()) throw InvalidInput(place + ": content is missing");
    added.push_back({*content, id, flag("special"), flag("lstrip"), flag("rstrip"), flag("normalized")});
  }
  return added;
}

// The ids that stand before the text in the template for a single one. What stands after it (an end of text) is left
// out: a prompt is to be continued.
void ReadPostProcessor(const json& object, const std::string& where, std::vector<int32_t>& prefix) {
  ExpectObject(object, where);
  const std::string type = StringMember(object, "type", where).value_or("");
  if (type == "Sequence") {
    const json& list = Required(object, "processors", where);
    ExpectArray(list, where + ": processors");
    for (const json& step : list) ReadPostProcessor(step, where, prefix);
    return;
  }
  if (type == "ByteLevel") return;  // offsets only
  if (type != "TemplateProcessing") {
    throw InvalidInput(where + ": the type " + Quoted(type) +
                       " is not supported (Sequence, ByteLevel and TemplateProcessing are)");
  }
  const json& single = Required(object, "single", where);
  ExpectArray(single, where + ": single");
  for (const json& item : single) {
    ExpectObject(item, where + ": single");
    const json* special = FindMember(item, "SpecialToken");
    if (special == nullptr) return;
    ExpectObject(*special, where + ": single");
    const std::string name = StringMember(*special, "id", where + ": single").value_or("");
    const json& table = Required(object, "special_tokens", where);
    ExpectObject(table, where + ": special_tokens");
    const std::string place = where + ": special_tokens: " + Quoted(name);
    const json* entry = FindMember(table, name);
    if (entry == nullptr) throw InvalidInput(place + " is missing");
    ExpectObject(*entry, place);
    const json& ids = Required(*entry, "ids", place);
    ExpectArray(ids, place);
    for (const json& id : ids) prefix.push_back(TokenIdOf(id, place));
  }
}

bool IsUtf8(std::string_view text) {
  size_t pos = 0;
  for (size_t size = 1; pos < text.size() && size > 0; pos += size) size = Utf8CharSize(text, pos);
  return pos == text.size();
}

// The decoder makes running text of added tokens as it does of those of the vocabulary. Where the bytes that the letters
// of a byte-level token stand for are no text ("\u00e9" alone), nobody meant them: it stays what it is.
std::string RunningText(const AddedToken& token, const TextNormalizer& normalizer, const TokenDecoder& decoder,
                        const std::string& place) {
  std::string written = token.normalized ? normalizer.Apply(token.content) : token.content;
  if (decoder.byte_level) {
    std::optional<std::string> bytes = BytesOf(written);
    return bytes && IsUtf8(*bytes) ? *std::move(bytes) : written;
  }
  std::string text = Decoded(std::move(written), decoder, MaxReplacedBytes(token.content.size()), place);
  const std::optional<char> byte = decoder.byte_fallback ? FallbackByte(text) : std::nullopt;
  return byte ? std::string(1, *byte) : text;
}

// Where the file names no decoder: the way back from what its encoding does.
TokenDecoder DefaultDecoder(const PreTokenizer& pre_tokenizer) {
  TokenDecoder decoder;
  decoder.byte_level = pre_tokenizer.byte_level();
  if (const MetaspaceStep* metaspace = pre_tokenizer.metaspace()) {
    decoder.replacements.emplace_back(metaspace->replacement, " ");
    decoder.strips_leading_space = metaspace->prefix != PrefixScheme::kNever;
  }
  return decoder;
}

}  // namespace

HuggingFaceFile ParseHuggingFaceFile(std::string_view content, const std::string& where,
                                     const TokenizerSettings& settings) {
  const json root = ParseBoundedJson(content, where);
  ExpectObject(root, where);
  HuggingFaceFile file;
  if (const json* normalizer = FindMember(root, "normalizer")) {
    file.normalizer = TextNormalizer(*normalizer, where + ": normalizer");
  }
  if (const json* pre_tokenizer = FindMember(root, "pre_tokenizer")) {
    file.pre_tokenizer = PreTokenizer(*pre_tokenizer, where + ": pre_tokenizer");
  }
  const json* decoder_json = FindMember(root, "decoder");
  const TokenDecoder decoder = decoder_json != nullptr ? ParseTokenDecoder(*decoder_json, where + ": decoder")
                                                       : DefaultDecoder(file.pre_tokenizer);
  if (decoder.byte_level != file.pre_tokenizer.byte_level()) {
    throw InvalidInput(where + ": expected ByteLevel in both pre_tokenizer and decoder or in neither");
  }
  TokenizerParts& parts = file.parts;
  parts.kind = decoder.byte_level ? "tokenizer.json/byte-level" : "tokenizer.json/bpe";
  parts.where = where;
  parts.strips_leading_space = decoder.strips_leading_space;
  if (decoder.byte_fallback) parts.replacement = Replacement::kByte;  // a SentencePiece model's file
  file.model = ReadModel(Required(root, "model", where), where + ": model", decoder, parts.tokens);
  if (const json* added = FindMember(root, "added_tokens")) parts.added = ReadAdded(*added, where + ": added_tokens");
  parts.added = MergeAdded(std::move(parts.added), settings);
  for (AddedToken& token : parts.added) {
    token.text = RunningText(token, file.normalizer, decoder, where + ": added token " + Quoted(token.content));
  }
  if (const json* post = FindMember(root, "post_processor")) {
    ReadPostProcessor(*post, where + ": post_processor", parts.prefix);
  }
  if (!parts.prefix.empty()) parts.bos = parts.prefix.front();
  parts.add_bos = !parts.prefix.empty();
  if (const TokenizerClass* known = FindTokenizerClass(settings.tokenizer_class); known && known->reads_add_bos) {
    parts.add_bos = settings.add_bos.value_or(true);
    parts.prefix.clear();  // BOS alone
  }
  return file;
}

}  // namespace stoch
