// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/base.h"

#include <algorithm>
#include <array>
#include <map>
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

std::vector<AddedToken> MergeAdded(std::vector<AddedToken> own, const TokenizerSettings& settings) {
  std::map<std::pair<int32_t, std::string_view>, size_t> known;
  const size_t owned = own.size();
  own.reserve(owned + settings.added.size());  // `known` refers to its strings
  for (size_t i = 0; i < owned; ++i) known.emplace(std::pair(own[i].id, std::string_view(own[i].content)), i);
  for (const AddedToken& token : settings.added) {
    const auto [entry, fresh] = known.try_emplace({token.id, token.content}, own.size());
    if (fresh) {
      own.push_back(token);
      own.back().special |= settings.Names(token.content);
    } else if (settings.has_decoder && entry->second < owned) {
      AddedToken& same = own[entry->second];
      same.special |= token.special || settings.Names(token.content);
      same.lstrip = token.lstrip;
      same.rstrip = token.rstrip;
      same.normalized = token.normalized;
    }
  }
  if (settings.has_decoder) return own;
  for (AddedToken& token : own) token.special |= settings.Names(token.content);
  return own;
}

TokenizerBase::TokenizerBase(TokenizerParts parts, const TokenizerSettings& settings)
    : kind_(parts.kind),
      tokens_(std::move(parts.tokens)),
      added_({}),
      strips_leading_space_(parts.strips_leading_space),
      replacement_(parts.replacement),
      chat_template_(settings.chat_template) {
  EnterAdded(parts.added, parts.where);
  EnterNamed(settings, &parts);
  added_ = AddedTokenFinder(Unnormalized(std::move(parts.added)));
  const TokenizerClass* known = FindTokenizerClass(settings.tokenizer_class);
  using Default = std::optional<std::string_view>;
  bos_ = Role(parts, settings.bos_token, known != nullptr ? Default(known->bos) : Default(), parts.bos,
              settings.where + ": bos_token");
  if (settings.pad_token) {
    // Fine-tunes often name a pad token that was never made; no text needs one.
    pad_ = FindToken(parts, *settings.pad_token);
  } else {
    pad_ = Role(parts, {}, known != nullptr ? Default(known->pad) : Default(), parts.pad, "");
  }
  if (settings.eos_token || parts.eos.empty()) {
    const auto eos = Role(parts, settings.eos_token, known != nullptr ? Default(known->eos) : Default(), {},
                          settings.where + ": eos_token");
    if (eos) eos_.push_back(*eos);
  } else {
    eos_ = std::move(parts.eos);
  }
  for (const int32_t id : settings.eos_ids) {
    CheckNamed(id, settings.where + ": eos_token_id");
    if (std::find(eos_.begin(), eos_.end(), id) == eos_.end()) eos_.push_back(id);
  }
  if (parts.add_bos) {
    prefix_ = std::move(parts.prefix);
    if (prefix_.empty() && bos_) prefix_.push_back(*bos_);
  }
  for (const int32_t id : prefix_) CheckNamed(id, parts.where + ": post_processor");
  NameTokens(settings);
}

void TokenizerBase::NameTokens(const TokenizerSettings& settings) {
  named_ = settings.other_named;
  const auto name = [this](const char* key, const std::optional<std::string>& given, std::optional<int32_t> id) {
    if (given) named_[key] = *given;
    if (!given && id) named_[key] = At(*id).text;
    if (named_[key].empty()) named_.erase(key);
  };
  name("bos_token", settings.bos_token, bos_);
  name("eos_token", settings.eos_token, eos_.empty() ? std::optional<int32_t>() : eos_.front());
  name("pad_token", settings.pad_token, pad_);
}

// A token of the vocabulary that a key names is special, as if it had been added.
void TokenizerBase::EnterNamed(const TokenizerSettings& settings, TokenizerParts* parts) {
  std::vector<std::string> names = settings.additional_named;
  for (const auto& [key, name] : settings.other_named) names.push_back(name);
  for (const auto& name : {settings.bos_token, settings.eos_token, settings.pad_token}) {
    if (name) names.push_back(*name);
  }
  std::vector<AddedToken> entered;
  for (const std::string& name : names) {
    if (name.empty() || by_written_.contains(name)) continue;
    const auto id = FindToken(*parts, name);
    if (!id) continue;
    entered.push_back({.content = name, .id = *id, .special = true});
    EnterAdded({entered.back()}, settings.where);
  }
  parts->added.insert(parts->added.end(), entered.begin(), entered.end());
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

std::optional<int32_t> TokenizerBase::FindToken(const TokenizerParts& parts, std::string_view written) const {
  if (written.empty()) return std::nullopt;
  if (const auto found = by_written_.find(std::string(written)); found != by_written_.end()) return found->second;
  if (parts.find) return parts.find(written);
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].kind != Token::Kind::kUnused && tokens_[id].text == written) return static_cast<int32_t>(id);
  }
  return std::nullopt;
}

std::optional<int32_t> TokenizerBase::Role(const TokenizerParts& parts, const std::optional<std::string>& named,
                                           std::optional<std::string_view> by_class, std::optional<int32_t> own,
                                           const std::string& place) const {
  if (named) {
    const auto id = FindToken(parts, *named);
    if (!id && !named->empty()) {
      throw InvalidInput(place + " is " + Quoted(*named) + ", which the tokenizer does not have");
    }
    return id;
  }
  if (!by_class) return own;
  if (by_class->empty()) return std::nullopt;
  const auto id = FindToken(parts, *by_class);
  return id ? id : own;
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
      EncodeText(segment.text, options.at_start && segment.begin == 0, options, ids);
    }
  }
  return ids;
}

std::string_view TokenizerBase::WithoutRemoved(std::string_view text, const EncodeOptions& options, std::string* room) {
  if (options.removed.empty() || text.find(options.removed) == std::string_view::npos) return text;
  *room = ReplaceAll(text, options.removed, "");
  return *room;
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
  AppendUtf8Lossy(view, true, text, replacement_);
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
