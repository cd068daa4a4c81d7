// SPDX-License-Identifier: Apache-2.0
// What every kind of tokenizer shares: the token table, special tokens, BOS, decoding.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "loader/tokenizer/added.h"
#include "loader/tokenizer/settings.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch {

struct Token {
  enum class Kind : uint8_t {
    kUnused,   // no file names this id
    kText,     // part of running text
    kSpecial,  // control token: never text
  };
  Kind kind = Kind::kUnused;
  std::string text;  // kText: its bytes in running text; kSpecial: its written form
};

// What a kind of tokenizer hands over once its files are read.
struct TokenizerParts {
  std::string_view kind;
  std::string where;              // the file, for messages
  std::vector<Token> tokens;      // by id; added tokens are entered by the base
  std::vector<AddedToken> added;  // all of them; the base looks for those that are not `normalized`
  bool strips_leading_space = false;
  Replacement replacement = Replacement::kPart;
  // Where the settings do not say (std::nullopt: there is none).
  std::optional<int32_t> bos, pad;
  std::vector<int32_t> eos;
  bool add_bos = true;          // the settings' say included
  std::vector<int32_t> prefix;  // what add_bos puts in front; empty: bos
  // The id of a token of the file's vocabulary by its written form; empty: by its text.
  std::function<std::optional<int32_t>(std::string_view written)> find = nullptr;
};

// `own`, the added tokens of the tokenizer's own file, and those of the settings, each once (by id and content). Flags
// of an added_tokens_decoder go before those of `own`, but what either calls special, or a key names, is; added_tokens.json
// says nothing of a token that `own` has.
// Source: transformers 4.57.6, PreTrainedTokenizerFast.__init__.
std::vector<AddedToken> MergeAdded(std::vector<AddedToken> own, const TokenizerSettings& settings);

class TokenizerBase : public Tokenizer {
 public:
  int32_t vocab_size() const final { return static_cast<int32_t>(tokens_.size()); }
  std::optional<int32_t> bos_id() const final { return bos_; }
  std::optional<int32_t> pad_id() const final { return pad_; }
  std::vector<int32_t> eos_ids() const final { return eos_; }
  bool IsSpecial(int32_t id) const final;
  std::string_view kind() const final { return kind_; }
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const final;
  std::string TokenBytes(int32_t id) const final;
  std::string Decode(std::span<const int32_t> ids) const final;
  std::string TokenText(int32_t id) const final;
  std::optional<int32_t> FindSpecial(std::string_view written) const final;
  std::string chat_template() const final { return chat_template_; }
  std::map<std::string, std::string> named_tokens() const final { return named_; }
  Replacement replacement() const final { return replacement_; }
  bool strips_leading_space() const final { return strips_leading_space_; }

 protected:
  // Errors: InvalidInput for ids that two tokens claim, or settings that name no token.
  TokenizerBase(TokenizerParts parts, const TokenizerSettings& settings);

  // Appends the ids of text without added tokens. `first`: it stands at the beginning of what is encoded. Of the options,
  // parse_special and removed are for whoever looks for tokens in it.
  virtual void EncodeText(std::string_view text, bool first, const EncodeOptions& options,
                          std::vector<int32_t>& ids) const = 0;
  // A piece of it in which no token is looked for any more, without EncodeOptions::removed. `room` holds it where that
  // is there.
  static std::string_view WithoutRemoved(std::string_view text, const EncodeOptions& options, std::string* room);

  const std::vector<Token>& tokens() const { return tokens_; }

 private:
  void EnterAdded(const std::vector<AddedToken>& added, const std::string& where);
  void EnterNamed(const TokenizerSettings& settings, TokenizerParts* parts);
  void NameTokens(const TokenizerSettings& settings);
  const Token& At(int32_t id) const;
  void CheckNamed(int32_t id, const std::string& place) const;  // an id that a file names
  std::optional<int32_t> FindToken(const TokenizerParts& parts, std::string_view written) const;
  // The id of what a file names, else of what the class names, else `own`; nullopt where the file or the class names
  // none. Errors: InvalidInput where a file names a token that is not there.
  std::optional<int32_t> Role(const TokenizerParts& parts, const std::optional<std::string>& named,
                              std::optional<std::string_view> by_class, std::optional<int32_t> own,
                              const std::string& place) const;

  std::string_view kind_;
  std::vector<Token> tokens_;
  std::unordered_map<std::string, int32_t> by_written_;  // added tokens
  AddedTokenFinder added_;
  std::vector<int32_t> prefix_;
  std::optional<int32_t> bos_, pad_;
  std::vector<int32_t> eos_;
  bool strips_leading_space_;
  Replacement replacement_;
  std::string chat_template_;
  std::map<std::string, std::string> named_;
};

}  // namespace stoch
