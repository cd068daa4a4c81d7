// SPDX-License-Identifier: Apache-2.0
#include "tests/loader/tokenizer_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <unordered_map>

#include "kernels/base/error.h"
#include "loader/tokenizer/kinds.h"

namespace stoch::test {
namespace {

using nlohmann::json;

std::string ByteName(int byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
}

// GPT-2's character for a byte, as UTF-8.
std::string ByteLetter(int byte) {
  int code = 256;
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  if (printable(byte)) {
    code = byte;
  } else {
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

std::string Letters(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += ByteLetter(static_cast<unsigned char>(c));
  return text;
}

json Added(int32_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

json BosTemplate(const std::string& bos, int32_t id) {
  return {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", bos}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{bos, {{"id", bos}, {"ids", json::array({id})}, {"tokens", json::array({bos})}}}}}};
}

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json ByteLevelParts() {
  return {
      {"version", "1.0"},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", kLlama3Pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}}}}},
      {"decoder", {{"type", "ByteLevel"}}}};
}

void AppendVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
void AppendBytes(std::string& out, uint64_t field, std::string_view bytes) {
  AppendVarint(out, field << 3 | 2);
  AppendVarint(out, bytes.size());
  out += bytes;
}
void AppendNumber(std::string& out, uint64_t field, uint64_t value) {
  AppendVarint(out, field << 3);
  AppendVarint(out, value);
}

}  // namespace

json SentencePieceJson() {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[ByteName(byte)] = ByteToken(byte);
  vocab.update({{"▁", kSpace}, {"a", kA}, {"b", kB}, {"▁a", kSpaceA}, {"ab", kAb}, {"▁ab", kSpaceAb}, {"▁▁", kSpaces}});
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  const json decode = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  return {{"version", "1.0"},
          {"added_tokens", {Added(0, "<unk>"), Added(1, "<s>"), Added(2, "</s>")}},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, replace}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", BosTemplate("<s>", 1)},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {decode,
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"a b", "▁ a", "▁a b", "▁ ab", "▁ ▁"}}}}};
}

json ByteLevelJson() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteLetter(byte)] = byte;
  vocab.update({{"he", kHe}, {"ll", kLl}, {"hell", kHell}, {Letters(" h"), kSpaceH}});
  json result = ByteLevelParts();
  result["added_tokens"] = {Added(kBegin, "<|begin_of_text|>"), Added(kEnd, "<|end_of_text|>"),
                            Added(kStartHeader, "<|start_header_id|>"), Added(kEndHeader, "<|end_header_id|>"),
                            Added(kEot, "<|eot_id|>")};
  result["post_processor"] = BosTemplate("<|begin_of_text|>", kBegin);
  result["model"] = {{"type", "BPE"},
                     {"vocab", vocab},
                     {"merges", json::array({{"h", "e"}, {"l", "l"}, {"he", "ll"}, {Letters(" "), "h"}})},
                     {"ignore_merges", true}};
  return result;
}

std::string Base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) text += k <= count ? kDigits[(bits >> (18 - 6 * k)) & 63] : '=';
  }
  return text;
}

std::string TiktokenLines() {
  std::string lines;
  for (int byte = 0; byte < 256; ++byte) {
    lines += Base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte) + "\n";
  }
  int rank = 256;
  for (const char* token : {"he", "ll", "hell"}) lines += Base64(token) + " " + std::to_string(rank++) + "\n";
  return lines;
}

std::vector<Piece> SentencePiecePieces() {
  std::vector<Piece> pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}};
  for (int byte = 0; byte < 256; ++byte) pieces.push_back({ByteName(byte), 0, 6});
  // Single characters never come from a merge; the scores of the others follow the merges' order.
  for (const Piece& piece : {Piece{"▁", -9}, Piece{"a", -9}, Piece{"b", -9}, Piece{"▁a", -2}, Piece{"ab", -1},
                             Piece{"▁ab", -3}, Piece{"▁▁", -4}}) {
    pieces.push_back(piece);
  }
  return pieces;
}

std::string SentencePieceFile(const SentencePieceModel& model) {
  std::string file;
  for (const Piece& piece : model.pieces.empty() ? SentencePiecePieces() : model.pieces) {
    std::string message;
    AppendBytes(message, 1, piece.text);
    message += static_cast<char>(2 << 3 | 5);
    message.append(reinterpret_cast<const char*>(&piece.score), sizeof(piece.score));
    AppendNumber(message, 3, static_cast<uint64_t>(piece.type));
    AppendBytes(file, 1, message);
  }
  std::string trainer;
  AppendNumber(trainer, 3, static_cast<uint64_t>(model.model_type));
  AppendNumber(trainer, 35, model.byte_fallback ? 1 : 0);
  AppendBytes(file, 2, trainer);
  std::string normalizer;
  if (!model.charsmap.empty()) AppendBytes(normalizer, 2, model.charsmap);
  AppendNumber(normalizer, 3, model.add_dummy_prefix ? 1 : 0);
  AppendNumber(normalizer, 4, model.remove_extra_whitespaces ? 1 : 0);
  AppendBytes(file, 3, normalizer);
  return file + model.extra;
}

std::string ByteLevelJsonOf(std::string_view tiktoken_lines) {
  std::unordered_map<char, int> digits;
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < alphabet.size(); ++i) digits[alphabet[i]] = static_cast<int>(i);
  std::vector<std::string> tokens;
  std::unordered_map<std::string, int32_t> ranks;
  std::istringstream lines{std::string(tiktoken_lines)};
  for (std::string base64, rank; lines >> base64 >> rank;) {
    std::string bytes;
    uint32_t bits = 0;
    int count = 0;
    for (const char c : base64) {
      if (c == '=') break;
      bits = bits << 6 | static_cast<uint32_t>(digits.at(c));
      count += 6;
      if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8));
    }
    ranks.emplace(bytes, static_cast<int32_t>(tokens.size()));
    tokens.push_back(bytes);
  }
  json vocab = json::object();
  json merges = json::array();
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& token = tokens[id];
    vocab[Letters(token)] = id;
    std::vector<std::pair<int32_t, int32_t>> splits;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut));
      const auto right = ranks.find(token.substr(cut));
      if (left != ranks.end() && right != ranks.end()) splits.emplace_back(left->second, right->second);
    }
    std::sort(splits.begin(), splits.end());
    for (const auto& [left, right] : splits) {
      merges.push_back(Letters(tokens[static_cast<size_t>(left)]) + " " + Letters(tokens[static_cast<size_t>(right)]));
    }
  }
  json result = ByteLevelParts();
  const auto bos = static_cast<int32_t>(tokens.size());
  result["added_tokens"] = json::array({Added(bos, "<|begin_of_text|>")});
  result["post_processor"] = BosTemplate("<|begin_of_text|>", bos);
  result["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}, {"ignore_merges", true}};
  return result.dump();
}

std::unique_ptr<Tokenizer> FromJson(const json& json, const TokenizerSettings& settings) {
  return MakeHuggingFaceTokenizer(json.dump(), "tokenizer.json", settings);
}

Ids Plain(const Tokenizer& tokenizer, std::string_view text) { return tokenizer.Encode(text, {.add_bos = false}); }
Ids Parsed(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.Encode(text, {.add_bos = false, .parse_special = true});
}

std::string Refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidInput& error) {
    std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

}  // namespace stoch::test
