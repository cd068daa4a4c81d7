// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, for every tokenizer found in Llama checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "loader/tokenizer/unicode/text.h"

namespace stoch {

struct EncodeOptions {
  bool add_bos = true;         // where the checkpoint's rules ask for one
  bool parse_special = false;  // recognise special tokens written out in the text (chat templates)
  bool at_start = true;        // false: the text follows other tokens, so no space is put in front for its first word
  // A character that is taken out of the text between the tokens that are looked for, after they are: written into the
  // name of one, it keeps that name text. "": none.
  std::string_view removed = {};
};

// Immutable once loaded. Threads: safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int32_t vocab_size() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> pad_id() const { return std::nullopt; }
  virtual std::vector<int32_t> eos_ids() const = 0;  // what the tokenizer files name; the model config may add
  virtual bool IsSpecial(int32_t id) const = 0;      // control tokens that are not part of the text
  virtual std::string_view kind() const = 0;         // "sentencepiece", "tokenizer.json/bpe", "tiktoken"
  // Errors: InvalidInput for invalid UTF-8 (byte offset named).
  virtual std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const = 0;
  // The bytes of one token as they stand in running text (may be half a UTF-8 character; "" for special tokens).
  // Errors: InvalidInput for an id out of range.
  virtual std::string TokenBytes(int32_t id) const = 0;
  // The text of a whole sequence (special tokens skipped, the leading space SentencePiece adds removed). Bytes that
  // are no UTF-8 become U+FFFD, as many as replacement() says.
  virtual std::string Decode(std::span<const int32_t> ids) const = 0;
  // The written form of a token, special ones too: "<|eot_id|>", "▁the" as " the"; bytes that are no UTF-8 on their own
  // as "<0xE2>". Always valid UTF-8, not unique. For logprob listings.
  virtual std::string TokenText(int32_t id) const = 0;
  // The id of a special or added token by its written form.
  virtual std::optional<int32_t> FindSpecial(std::string_view written) const = 0;
  virtual std::string chat_template() const = 0;  // the checkpoint's Jinja source, "" if it has none
  // The written forms of the tokens that files name, by their keys: "bos_token", "unk_token", ... Templates know them.
  virtual std::map<std::string, std::string> named_tokens() const { return {}; }
  virtual Replacement replacement() const { return Replacement::kPart; }
  virtual bool strips_leading_space() const = 0;  // Encode puts a space in front, Decode takes it away again
};

// Loads the tokenizer of a GGUF file, or of a folder: tokenizer.json, else tokenizer.model (SentencePiece or tiktoken, told apart by
// content), with tokenizer_config.json / special_tokens_map.json / generation_config.json where present.
// Errors: InvalidInput if there is none, or a file is broken.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& folder);

// Turns ids into text piece by piece; never returns half a UTF-8 character. One per stream, not thread-safe.
class StreamDecoder {
 public:
  // at_start: what is pushed begins the text, as in Decode; false: it goes on after a prompt, whose last word a
  // leading space parts from it.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool at_start = true)
      : tokenizer_(&tokenizer), at_start_(at_start) {}
  // Text that became complete. Ids beyond vocab_size(), which a model with a padded vocabulary has, have none.
  std::string Push(int32_t id);
  std::string Flush();  // the rest; an incomplete character as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
  bool at_start_;
};

}  // namespace stoch
