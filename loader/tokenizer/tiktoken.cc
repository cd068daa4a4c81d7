// SPDX-License-Identifier: Apache-2.0
// The tiktoken form of Llama-3's tokenizer.model: merges are implied by the ranks of the tokens.
#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <unordered_map>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/base.h"
#include "loader/tokenizer/bpe.h"
#include "loader/tokenizer/kinds.h"
#include "loader/tokenizer/limits.h"
#include "loader/tokenizer/regex.h"

namespace stoch {
namespace {

constexpr int kSpecialTokens = 256;
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

int Base64Digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// RFC 4648 with padding; nullopt for anything else.
std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int digit = Base64Digit(c);
    if (digit < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>((bits >> count) & 0xffu);
    }
  }
  const bool stray_bits = (bits & ((1u << count) - 1)) != 0;
  return stray_bits ? std::nullopt : std::optional(bytes);
}

std::string SpecialName(int index) {
  constexpr std::array<std::string_view, 10> kNamed = {"<|begin_of_text|>",
                                                       "<|end_of_text|>",
                                                       "<|reserved_special_token_0|>",
                                                       "<|reserved_special_token_1|>",
                                                       "<|reserved_special_token_2|>",
                                                       "<|reserved_special_token_3|>",
                                                       "<|start_header_id|>",
                                                       "<|end_header_id|>",
                                                       "<|reserved_special_token_4|>",
                                                       "<|eot_id|>"};
  const auto at = static_cast<size_t>(index);
  if (at < kNamed.size()) return std::string(kNamed[at]);
  return "<|reserved_special_token_" + std::to_string(index - 5) + "|>";
}

std::vector<Token> ParseRanks(std::string_view content, const std::string& where) {
  std::vector<Token> tokens;
  int line_number = 0;
  while (!content.empty()) {
    const size_t newline = content.find('\n');
    const std::string_view line = content.substr(0, newline);
    content.remove_prefix(newline == std::string_view::npos ? content.size() : newline + 1);
    const std::string place = where + " line " + std::to_string(++line_number);
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) {
      throw InvalidInput(place + ": expected a base64 token, a space and a rank, got " + Quoted(line));
    }
    auto token = DecodeBase64(line.substr(0, space));
    if (!token) throw InvalidInput(place + ": " + Quoted(line.substr(0, space)) + " is not base64");
    const std::string_view digits = line.substr(space + 1);
    int64_t rank = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc() || end != digits.data() + digits.size() || rank != static_cast<int64_t>(tokens.size())) {
      throw InvalidInput(place + ": expected rank " + std::to_string(tokens.size()) + ", got " + Quoted(digits));
    }
    if (tokens.size() + kSpecialTokens > static_cast<size_t>(kMaxTokenId)) {
      throw InvalidInput(where + ": more than " + std::to_string(kMaxTokenId - kSpecialTokens) + " tokens");
    }
    tokens.push_back({Token::Kind::kText, std::move(*token)});
  }
  if (tokens.empty()) throw InvalidInput(where + ": expected lines of tokens, got an empty file");
  return tokens;
}

TokenizerParts MakeParts(std::string_view content, const std::string& where, const TokenizerSettings& settings) {
  TokenizerParts parts;
  parts.kind = "tiktoken";
  parts.where = where;
  parts.tokens = ParseRanks(content, where);
  const auto first_special = static_cast<int32_t>(parts.tokens.size());
  std::set<int32_t> named;
  for (AddedToken token : settings.added) {
    token.normalized = false;  // there is no normalizer
    named.insert(token.id);
    parts.added.push_back(std::move(token));
  }
  for (int32_t i = 0; i < kSpecialTokens; ++i) {
    if (!named.contains(first_special + i)) parts.added.push_back({SpecialName(i), first_special + i, true});
  }
  parts.add_bos = settings.add_bos.value_or(true);
  parts.bos = first_special;
  parts.eos = {first_special + 1, first_special + 9};
  return parts;
}

class TiktokenTokenizer final : public TokenizerBase {
 public:
  TiktokenTokenizer(std::string_view content, const std::string& where, const TokenizerSettings& settings)
      : TokenizerBase(MakeParts(content, where, settings), settings), pattern_(kLlama3Pattern, where) {
    bytes_.fill(-1);
    const auto count = static_cast<size_t>(std::count(content.begin(), content.end(), '\n')) + !content.ends_with('\n');
    for (size_t i = 0; i < count; ++i) {
      const Token& token = tokens()[i];
      const auto [same, inserted] = ranks_.emplace(token.text, static_cast<int32_t>(i));
      if (!inserted) {
        throw InvalidInput(where + ": ranks " + std::to_string(same->second) + " and " + std::to_string(i) +
                           " are the same token " + Quoted(token.text));
      }
      longest_ = std::max(longest_, token.text.size());
      if (token.text.size() == 1) bytes_[static_cast<uint8_t>(token.text[0])] = static_cast<int32_t>(i);
    }
    for (size_t byte = 0; byte < bytes_.size(); ++byte) {
      if (bytes_[byte] < 0) throw InvalidInput(where + ": no token for the single byte " + std::to_string(byte));
    }
  }

 private:
  void EncodeText(std::string_view text, bool /*first*/, const EncodeOptions& options,
                  std::vector<int32_t>& ids) const override {
    std::string room;
    text = WithoutRemoved(text, options, &room);
    for (const TextSpan& span : pattern_.FindAll(text)) {
      EncodeWord(text.substr(span.begin, span.end - span.begin), ids);
    }
  }

  void EncodeWord(std::string_view word, std::vector<int32_t>& ids) const {
    if (const auto whole = ranks_.find(word); whole != ranks_.end()) {
      ids.push_back(whole->second);
      return;
    }
    std::vector<BpeSymbol> symbols = ByteSymbols(word, bytes_);
    const auto find_merge = [&](const BpeSymbol& left, const BpeSymbol& right) -> std::optional<BpeMerge> {
      const size_t size = left.size + right.size;
      if (size > longest_) return std::nullopt;
      const auto found = ranks_.find(word.substr(left.begin, size));
      if (found == ranks_.end()) return std::nullopt;
      return BpeMerge{found->second, found->second};
    };
    MergeSymbols(symbols, find_merge, ids);
  }

  Regex pattern_;
  std::unordered_map<std::string_view, int32_t> ranks_;  // views of the token table
  std::array<int32_t, 256> bytes_{};
  size_t longest_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeTiktokenTokenizer(std::string_view content, const std::string& where,
                                                 const TokenizerSettings& settings) {
  return std::make_unique<TiktokenTokenizer>(content, where, settings);
}

bool LooksLikeTiktoken(std::string_view content) {
  const std::string_view line = content.substr(0, content.find('\n'));
  if (line.empty() || line.find(' ') == std::string_view::npos) return false;
  for (const char c : line) {
    if (c < 0x20 || c > 0x7e) return false;
  }
  return true;
}

}  // namespace stoch
