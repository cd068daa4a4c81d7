#include "engine/serve/completion_response.h"

#include <algorithm>
#include <utility>

#include "engine/serve/request_error.h"
#include "kernels/base/check.h"

namespace stoch::serve {
namespace {

int64_t CodePoints(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

OrderedJson FinishJson(std::string_view finish) { return finish.empty() ? OrderedJson(nullptr) : OrderedJson(finish); }

}  // namespace

std::string Dump(const OrderedJson& value) { return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

std::string ErrorText(int status, const std::string& message, const std::string& param) {
  const char* type = status < 500 ? "invalid_request_error" : "server_error";
  return Dump({{"error",
                {{"message", message},
                 {"type", type},
                 {"param", param.empty() ? OrderedJson(nullptr) : OrderedJson(param)},
                 {"code", status}}}});
}

// --------------------------------------------------------------------------------------------------- logprobs ----

std::string LogprobWriter::TokenText(int32_t id) const {
  // Models without a tokenizer, and ids of a padded vocabulary.
  if (tokenizer_ == nullptr || id >= tokenizer_->vocab_size()) return "token_id:" + std::to_string(id);
  return tokenizer_->TokenText(id);
}

OrderedJson LogprobWriter::Piece(std::span<const int32_t> ids, std::span<const std::optional<TokenLogprob>> logprobs) {
  STOCH_CHECK(ids.size() == logprobs.size());
  return chat_ ? ChatPiece(ids, logprobs) : CompletionPiece(ids, logprobs);
}

OrderedJson LogprobWriter::CompletionPiece(std::span<const int32_t> ids,
                                           std::span<const std::optional<TokenLogprob>> logprobs) {
  OrderedJson tokens = OrderedJson::array();
  OrderedJson own = OrderedJson::array();
  OrderedJson top = OrderedJson::array();
  OrderedJson offsets = OrderedJson::array();
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string text = TokenText(ids[i]);
    tokens.push_back(text);
    offsets.push_back(offset_);
    offset_ += CodePoints(text);
    if (!logprobs[i]) {
      own.push_back(nullptr);
      top.push_back(nullptr);
      continue;
    }
    own.push_back(logprobs[i]->logprob);
    // Two tokens may be written alike: the likelier one, which comes first, keeps the entry.
    OrderedJson entries = OrderedJson::object();
    for (const auto& [id, logprob] : logprobs[i]->top) entries.emplace(TokenText(id), logprob);
    entries.emplace(text, logprobs[i]->logprob);
    top.push_back(std::move(entries));
  }
  return {{"tokens", tokens}, {"token_logprobs", own}, {"top_logprobs", top}, {"text_offset", offsets}};
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

OrderedJson LogprobWriter::ChatPiece(std::span<const int32_t> ids,
                                     std::span<const std::optional<TokenLogprob>> logprobs) const {
  OrderedJson content = OrderedJson::array();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!logprobs[i]) continue;
    OrderedJson entry = ChatToken(ids[i], logprobs[i]->logprob);
    OrderedJson top = OrderedJson::array();
    for (const auto& [id, logprob] : logprobs[i]->top) top.push_back(ChatToken(id, logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", content}};
}

// ----------------------------------------------------------------------------------------------------- bodies ----

OrderedJson ResponseFrame::Body(bool chunk) const {
  const char* object = !chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", id}, {"object", object}, {"created", created}, {"model", model}};
}

OrderedJson UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

OrderedJson WholeChoice(bool chat, size_t index, const std::string& text, OrderedJson logprobs,
                        std::string_view finish) {
  OrderedJson choice = {{"index", index}};
  if (chat) {
    choice["message"] = {{"role", "assistant"}, {"content", text}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = FinishJson(finish);
  return choice;
}

OrderedJson ChunkChoice(bool chat, size_t index, const std::string& text, OrderedJson logprobs, std::string_view finish,
                        bool first) {
  OrderedJson choice = {{"index", index}};
  if (chat) {
    OrderedJson delta = OrderedJson::object();
    if (first) delta["role"] = "assistant";
    if (first || !text.empty()) delta["content"] = text;
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = FinishJson(finish);
  return choice;
}

}  // namespace stoch::serve
