// SPDX-License-Identifier: Apache-2.0
// The JSON of /v1/completions and /v1/chat/completions, whole and in chunks.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/serve/format/token_columns.h"
#include "engine/serve/format/tools.h"
#include "loader/json_types.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch::serve {

// Compact JSON text; a stray byte that is no UTF-8 becomes U+FFFD. Nothing of the document is left, whatever its size.
std::string Dump(OrderedJson value);

// Logprobs of one choice, piece by piece: text offsets go on from the piece before.
class LogprobWriter {
 public:
  // The lists of a logprobs object, in order. Chats have one.
  enum class List : uint8_t { kTokens, kLogprobs, kTop, kOffsets };

  LogprobWriter(const Tokenizer* tokenizer, bool chat);
  // The text that the pieces go on from, which they do not hold. Called once, before them.
  void GoOnFrom(std::span<const int32_t> prompt);
  // The logprobs object of tokens [begin, end), which follow those of the piece before. Every listed alternative and
  // its own token's entry print the same double where they are the same token. No logprob (a prompt's first token):
  // null.
  OrderedJson Piece(const TokenColumns& tokens, size_t begin, size_t end);
  // One list of it (kTokens stands for the one of a chat).
  OrderedJson Entries(List list, const TokenColumns& tokens, size_t begin, size_t end);

 private:
  OrderedJson Entry(List list, const TokenColumns& tokens, size_t i);
  OrderedJson ChatEntry(const TokenColumns& tokens, size_t i) const;
  int64_t Offset(int32_t id);
  std::string TokenText(int32_t id) const;
  OrderedJson ChatToken(int32_t id, double logprob) const;

  const Tokenizer* tokenizer_;
  bool chat_;
  std::optional<StreamDecoder> decoder_;
  int64_t offset_ = 0;  // of what the decoder gave, in code points, as Python clients count
};

// What an answer says of one choice, as far as it is not sent.
struct AnswerChoice {
  explicit AnswerChoice(LogprobWriter logprob_writer) : writer(std::move(logprob_writer)) {}
  LogprobWriter writer;
  std::string text;
  std::string reasoning;  // of a chat, where it is taken apart from the text
  std::vector<ToolCall> calls;
  TokenColumns tokens;  // that logprobs belong to, echoed ones included; empty where nobody asked
  std::string finish;   // "" while it goes on
  std::string logits_sha256;
};

// The frame of every body of one exchange.
struct ResponseFrame {
  std::string id;  // "cmpl-..."
  bool chat = false;
  std::string model;
  int64_t created = 0;
  std::string fingerprint;  // "" while it is not known
  uint64_t seed = 0;
  bool negative_seed = false;  // it was given as a number below 0, and is told so
  std::string date;            // that a chat template wrote, if it did

  OrderedJson Body(bool chunk) const;  // without choices
  // tool_calls of a choice. The same answer gives its calls the same ids.
  OrderedJson Calls(bool chunk, size_t choice, const std::vector<ToolCall>& calls) const;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};
OrderedJson UsageJson(const Usage& usage);

// What one event of a stream says of a choice.
struct Chunk {
  std::string text;
  std::string reasoning;
  OrderedJson calls;          // null: none
  size_t begin = 0, end = 0;  // tokens of the choice
  bool first = false;         // of a chat: it names the role
  bool last = false;          // it says how the choice ended
};
// One entry of choices of a stream.
OrderedJson ChunkChoice(bool chat, size_t index, AnswerChoice& choice, bool logprobs, const Chunk& chunk);

// How many tokens make a piece of some thousand values.
size_t PieceTokens(int alternatives);

}  // namespace stoch::serve
