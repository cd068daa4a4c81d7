// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/completion_response.h"

#include <algorithm>
#include <utility>

#include "engine/serve/http/request_error.h"
#include "kernels/base/check.h"
#include "loader/bounded_json.h"
#include "loader/sha256.h"

namespace stoch::serve {
namespace {

int64_t CodePoints(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

std::string Dump(OrderedJson value) {
  const ReleasedJson<OrderedJson> document{std::move(value)};
  return document.json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string ErrorText(int status, const std::string& message, const std::string& param) {
  const char* type = status < 500 ? "invalid_request_error" : "server_error";
  return Dump({{"error",
                {{"message", message},
                 {"type", type},
                 {"param", param.empty() ? OrderedJson(nullptr) : OrderedJson(param)},
                 {"code", status}}}});
}

// --------------------------------------------------------------------------------------------------- logprobs ----

LogprobWriter::LogprobWriter(const Tokenizer* tokenizer, bool chat) : tokenizer_(tokenizer), chat_(chat) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer);
}

void LogprobWriter::GoOnFrom(std::span<const int32_t> prompt) {
  if (!decoder_) return;
  for (const int32_t id : prompt) decoder_->Push(id);
}

std::string LogprobWriter::TokenText(int32_t id) const {
  // Models without a tokenizer, and ids of a padded vocabulary.
  if (tokenizer_ == nullptr || id >= tokenizer_->vocab_size()) return "token_id:" + std::to_string(id);
  return tokenizer_->TokenText(id);
}

// Where the token's text begins in the text that is shown. Special tokens have none there, and a character belongs to
// the token that completes it.
int64_t LogprobWriter::Offset(int32_t id) {
  const int64_t begin = offset_;
  if (decoder_) offset_ += CodePoints(decoder_->Push(id));
  return begin;
}

OrderedJson LogprobWriter::Piece(const TokenColumns& tokens, size_t begin, size_t end) {
  if (chat_) return {{"content", Entries(List::kTokens, tokens, begin, end)}};
  return {{"tokens", Entries(List::kTokens, tokens, begin, end)},
          {"token_logprobs", Entries(List::kLogprobs, tokens, begin, end)},
          {"top_logprobs", Entries(List::kTop, tokens, begin, end)},
          {"text_offset", Entries(List::kOffsets, tokens, begin, end)}};
}

OrderedJson LogprobWriter::Entries(List list, const TokenColumns& tokens, size_t begin, size_t end) {
  STOCH_CHECK(begin <= end && end <= tokens.size());
  OrderedJson entries = OrderedJson::array();
  for (size_t i = begin; i < end; ++i) {
    if (!chat_) {
      entries.push_back(Entry(list, tokens, i));
    } else if (tokens.has_logprob(i)) {
      entries.push_back(ChatEntry(tokens, i));
    }
  }
  return entries;
}

OrderedJson LogprobWriter::Entry(List list, const TokenColumns& tokens, size_t i) {
  switch (list) {
    case List::kTokens: return TokenText(tokens.id(i));
    case List::kLogprobs: return tokens.has_logprob(i) ? OrderedJson(tokens.logprob(i)) : OrderedJson(nullptr);
    case List::kOffsets: return Offset(tokens.id(i));
    case List::kTop: break;
  }
  if (!tokens.has_logprob(i)) return nullptr;
  // Two tokens may be written alike: the likelier one, which comes first, keeps the entry.
  OrderedJson top = OrderedJson::object();
  for (size_t t = 0; t < tokens.top_ids(i).size(); ++t) {
    top.emplace(TokenText(tokens.top_ids(i)[t]), tokens.top_logprobs(i)[t]);
  }
  top.emplace(TokenText(tokens.id(i)), tokens.logprob(i));
  return top;
}

OrderedJson LogprobWriter::ChatToken(int32_t id, double logprob) const {
  const std::string text = TokenText(id);
  // The bytes as they stand in the text; a special token has none there, so its written form counts.
  std::string bytes = text;
  if (tokenizer_ != nullptr && id < tokenizer_->vocab_size() && !tokenizer_->IsSpecial(id)) {
    bytes = tokenizer_->TokenBytes(id);
  }
  OrderedJson list = OrderedJson::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", logprob}, {"bytes", list}};
}

OrderedJson LogprobWriter::ChatEntry(const TokenColumns& tokens, size_t i) const {
  OrderedJson entry = ChatToken(tokens.id(i), tokens.logprob(i));
  OrderedJson top = OrderedJson::array();
  for (size_t t = 0; t < tokens.top_ids(i).size(); ++t) {
    top.push_back(ChatToken(tokens.top_ids(i)[t], tokens.top_logprobs(i)[t]));
  }
  entry["top_logprobs"] = std::move(top);
  return entry;
}

// ----------------------------------------------------------------------------------------------------- bodies ----

OrderedJson ResponseFrame::Body(bool chunk) const {
  const char* object = !chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  OrderedJson body = {{"id", id},
                      {"object", object},
                      {"created", created},
                      {"model", model},
                      {"system_fingerprint", fingerprint.empty() ? OrderedJson(nullptr) : OrderedJson(fingerprint)},
                      {"seed", negative_seed ? OrderedJson(static_cast<int64_t>(seed)) : OrderedJson(seed)}};
  if (!date.empty()) body["chat_template_kwargs"] = {{"date_string", date}};
  return body;
}

OrderedJson ResponseFrame::Calls(bool chunk, size_t choice, const std::vector<ToolCall>& calls) const {
  constexpr size_t kDigits = 24;
  OrderedJson list = OrderedJson::array();
  for (const ToolCall& call : calls) {
    const std::string name = id + "/" + std::to_string(choice) + "/" + std::to_string(call.index);
    OrderedJson entry = OrderedJson::object();
    if (chunk) entry["index"] = call.index;
    entry["id"] = "call_" + Sha256Hex(name).substr(0, kDigits);
    entry["type"] = "function";
    entry["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    list.push_back(std::move(entry));
  }
  return list;
}

OrderedJson UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

OrderedJson ChunkChoice(bool chat, size_t index, AnswerChoice& choice, bool logprobs, const Chunk& chunk) {
  OrderedJson json = {{"index", index}};
  if (chat) {
    OrderedJson delta = OrderedJson::object();
    if (chunk.first) delta["role"] = "assistant";
    if (!chunk.reasoning.empty()) delta["reasoning_content"] = chunk.reasoning;
    const bool only_calls = !chunk.calls.is_null() && chunk.text.empty();
    if ((chunk.first && !only_calls) || !chunk.text.empty()) delta["content"] = chunk.text;
    if (!chunk.calls.is_null()) delta["tool_calls"] = chunk.calls;
    json["delta"] = std::move(delta);
  } else {
    json["text"] = chunk.text;
  }
  json["logprobs"] = logprobs ? choice.writer.Piece(choice.tokens, chunk.begin, chunk.end) : OrderedJson(nullptr);
  json["finish_reason"] = chunk.last ? OrderedJson(choice.finish) : OrderedJson(nullptr);
  if (chunk.last && !choice.logits_sha256.empty()) json["logits_sha256"] = choice.logits_sha256;
  return json;
}

size_t PieceTokens(int alternatives) {
  constexpr int kPieceValues = 4096;
  return static_cast<size_t>(std::max(1, kPieceValues / (1 + std::max(0, alternatives))));
}

}  // namespace stoch::serve
