// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/base.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/limits.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

// A kind with a normalizer looks for the others itself.
std::vector<AddedToken> Unnormalized(std::vector<AddedToken> added) {
  std::erase_if(added, [](const AddedToken& token) { return token.normalized; });
  return added;
}

}  // namespace

std::vector<AddedToken> MergeAdded(std::vector<AddedToken> first, const std::vector<AddedToken>& second) {
  std::set<std::pair<int32_t, std::string>> known;
  for (const AddedToken& token : first) known.emplace(token.id, token.content);
  for (const AddedToken& token : second) {
    if (known.emplace(token.id, token.content).second) first.push_back(token);
  }
  return first;
}

TokenizerBase::TokenizerBase(TokenizerParts parts, const TokenizerSettings& settings)
    : kind_(parts.kind),
      tokens_(std::move(parts.tokens)),
      added_(Unnormalized(parts.added)),
      strips_leading_space_(parts.strips_leading_space),
      chat_template_(settings.chat_template) {
  EnterAdded(parts.added, parts.where);
  bos_ = settings.bos_token ? Named(settings.bos_token, "bos_token", settings.where) : parts.bos;
  if (settings.pad_token) {
    // Fine-tunes often name a pad token that was never made; no text needs one.
    const auto found = by_written_.find(*settings.pad_token);
    if (found != by_written_.end()) pad_ = found->second;
  } else {
    pad_ = parts.pad;
  }
  if (settings.eos_token) {
    eos_.push_back(*Named(settings.eos_token, "eos_token", settings.where));
  } else {
    eos_ = std::move(parts.eos);
  }
  for (const int32_t id : settings.eos_ids) {
    CheckNamed(id, settings.where + ": eos_token_id");
    if (std::find(eos_.begin(), eos_.end(), id) == eos_.end()) eos_.push_back(id);
  }
  if (settings.add_bos.value_or(parts.add_bos)) {
    prefix_ = std::move(parts.prefix);
    if (prefix_.empty() && bos_) prefix_.push_back(*bos_);
  }
  for (const int32_t id : prefix_) CheckNamed(id, parts.where + ": post_processor");
}

void TokenizerBase::EnterAdded(const std::vector<AddedToken>& added, const std::string& where) {
  for (const AddedToken& token : added) {
    if (token.id < 0 || token.id > kMaxTokenId) {
      throw InvalidInput(where + ": added token " + Quoted(token.content) + ": expected an id in 0 .. " +
                         std::to_string(kMaxTokenId) + ", got " + std::to_string(token.id));
    }
    const auto [entry, inserted] = by_written_.emplace(token.content, token.id);
    if (!inserted && entry->second != token.id) {
      throw InvalidInput(where + ": added token " + Quoted(token.content) + " has two ids, " +
                         std::to_string(entry->second) + " and " + std::to_string(token.id));
    }
    const auto id = static_cast<size_t>(token.id);
    if (id >= tokens_.size()) tokens_.resize(id + 1);
    Token& at = tokens_[id];
    const bool same_id_twice = at.kind != Token::Kind::kUnused && by_written_.contains(at.text) &&
                               by_written_.at(at.text) == token.id && at.text != token.content;
    if (same_id_twice) {
      throw InvalidInput(where + ": id " + std::to_string(token.id) + " is both " + Quoted(at.text) + " and " +
                         Quoted(token.content));
    }
    at = {token.special ? Token::Kind::kSpecial : Token::Kind::kText,
          token.special || token.text.empty() ? token.content : token.text};
  }
}

std::optional<int32_t> TokenizerBase::Named(const std::optional<std::string>& name, std::string_view role,
                                            const std::string& where) const {
  if (!name) return std::nullopt;
  if (const auto found = by_written_.find(*name); found != by_written_.end()) return found->second;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].kind != Token::Kind::kUnused && tokens_[id].text == *name) return static_cast<int32_t>(id);
  }
  throw InvalidInput(where + ": " + std::string(role) + " is " + Quoted(*name) + ", which the tokenizer does not have");
}

const Token& TokenizerBase::At(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) {
    throw InvalidInput("token id " + std::to_string(id) + " is out of range: expected 0 .. " +
                       std::to_string(static_cast<int64_t>(tokens_.size()) - 1));
  }
  return tokens_[static_cast<size_t>(id)];
}

void TokenizerBase::CheckNamed(int32_t id, const std::string& place) const {
  if (id >= vocab_size()) {
    throw InvalidInput(place + ": expected a token id below " + std::to_string(vocab_size()) + ", got " +
                       std::to_string(id));
  }
}

bool TokenizerBase::IsSpecial(int32_t id) const { return At(id).kind == Token::Kind::kSpecial; }

std::vector<int32_t> TokenizerBase::Encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > static_cast<size_t>(kMaxTextBytes)) {
    throw InvalidInput("the text has " + std::to_string(text.size()) + " bytes, expected at most " +
                       std::to_string(kMaxTextBytes));
  }
  CheckUtf8(text, "the text");
  std::vector<int32_t> ids;
  if (options.add_bos) ids = prefix_;
  for (const TextSegment& segment : added_.Split(text, options.parse_special)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      EncodeText(segment.text, options.at_start && segment.begin == 0, options.parse_special, ids);
    }
  }
  return ids;
}

std::string TokenizerBase::TokenBytes(int32_t id) const {
  const Token& token = At(id);
  return token.kind == Token::Kind::kText ? token.text : std::string();
}

std::string TokenizerBase::Decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const Token& token = At(id);
    if (token.kind == Token::Kind::kText) bytes += token.text;
  }
  std::string_view view = bytes;
  if (strips_leading_space_ && view.starts_with(' ')) view.remove_prefix(1);
  std::string text;
  text.reserve(view.size());
  AppendUtf8Lossy(view, true, text);
  return text;
}

std::string TokenizerBase::TokenText(int32_t id) const {
  constexpr std::array<char, 17> kHex = {"0123456789ABCDEF"};
  const Token& token = At(id);
  if (token.kind == Token::Kind::kUnused) return "<unused:" + std::to_string(id) + ">";
  std::string text;
  for (size_t pos = 0; pos < token.text.size();) {
    const size_t size = Utf8CharSize(token.text, pos);
    if (size != 0) {
      text.append(token.text, pos, size);
      pos += size;
    } else {
      const auto byte = static_cast<uint8_t>(token.text[pos++]);
      text += {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
    }
  }
  return text;
}

std::optional<int32_t> TokenizerBase::FindSpecial(std::string_view written) const {
  const auto found = by_written_.find(std::string(written));
  return found == by_written_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace stoch
