// The JSON of /v1/completions and /v1/chat/completions, whole and in chunks.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generate.h"
#include "engine/serve/completion_request.h"

namespace stoch::serve {

using OrderedJson = nlohmann::ordered_json;

// What: compact JSON text; a stray byte that is no UTF-8 becomes U+FFFD.
std::string Dump(const OrderedJson& value);

// Logprobs of one choice, piece by piece: text offsets go on from the piece before.
class LogprobWriter {
 public:
  LogprobWriter(const Tokenizer* tokenizer, bool chat) : tokenizer_(tokenizer), chat_(chat) {}
  // What:   the logprobs object of these tokens. Every listed alternative and its own token's entry print the same
  //         double where they are the same token. No logprob (a prompt's first token): null.
  OrderedJson Piece(std::span<const int32_t> ids, std::span<const std::optional<TokenLogprob>> logprobs);

 private:
  OrderedJson CompletionPiece(std::span<const int32_t> ids, std::span<const std::optional<TokenLogprob>> logprobs);
  OrderedJson ChatPiece(std::span<const int32_t> ids, std::span<const std::optional<TokenLogprob>> logprobs) const;
  std::string TokenText(int32_t id) const;
  OrderedJson ChatToken(int32_t id, double logprob) const;

  const Tokenizer* tokenizer_;
  bool chat_;
  int64_t offset_ = 0;  // in code points, as Python clients count
};

// The frame of every body of one exchange.
struct ResponseFrame {
  std::string id;  // "cmpl-..."
  bool chat = false;
  std::string model;
  int64_t created = 0;

  OrderedJson Body(bool chunk) const;  // without choices
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};
OrderedJson UsageJson(const Usage& usage);

// One entry of choices. logprobs may be null. finish: "" while it goes on. A chunk of a chat has a delta; the first one
// names the role.
OrderedJson WholeChoice(bool chat, size_t index, const std::string& text, OrderedJson logprobs,
                        std::string_view finish);
OrderedJson ChunkChoice(bool chat, size_t index, const std::string& text, OrderedJson logprobs, std::string_view finish,
                        bool first);

}  // namespace stoch::serve
