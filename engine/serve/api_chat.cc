// SPDX-License-Identifier: Apache-2.0
// The endpoints that take conversations, and tokens of texts.
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/serve/api_call.h"
#include "engine/serve/format/json_fields.h"
#include "engine/serve/format/list_limits.h"
#include "engine/serve/format/messages.h"

namespace stoch::serve {
namespace {

using Json = SortedJson;

constexpr int kBadRequest = 400;
constexpr int kTooManyRequests = 429;
constexpr int kUnavailable = 503;

// A request until another thread has what it needs, and then what it became. Its calls are those of one connection, which
// never overlap.
class Pending : public Exchange {
 public:
  void OnDisconnect() override {
    left_ = true;
    if (exchange_ != nullptr) exchange_->OnDisconnect();
  }
  void Become(std::shared_ptr<Exchange> exchange) { exchange_ = std::move(exchange); }
  bool left() const { return left_; }  // any thread

 private:
  std::atomic<bool> left_{false};
  std::shared_ptr<Exchange> exchange_;
};

RenderedChat RenderNow(const Chat& chat, ChatRequest conversation) {
  try {
    return chat.Render(std::move(conversation));
  } catch (const InvalidInput& error) {
    throw RequestError(kBadRequest, "messages", error.what());
  }
}

// A conversation that waits keeps its part of the memory for bodies: what it takes now, which may be more than its text did.
void KeepMemory(const ChatRequest& conversation, BodyLease* memory) {
  if (memory->bytes() == 0) return;
  int64_t bytes = 0;
  for (const OrderedJson* part :
       {&conversation.messages, &conversation.tools, &conversation.documents, &conversation.kwargs}) {
    bytes += JsonBytes(*part);
  }
  if (memory->GrowTo(bytes)) return;
  throw RequestError(kUnavailable, "",
                     "the bodies of other requests take the memory for bodies; try again in a moment");
}

}  // namespace

std::shared_ptr<Exchange> Api::Await(TaskQueue& queue, const char* full, Call& call, std::function<void()> work,
                                     Answer then) {
  const std::string client = call.owner.empty() ? call.request.address : call.owner;
  const auto waiting = std::make_shared<Pending>();
  const auto shared = std::make_shared<Call>(std::move(call));
  const bool taken = queue.Add(client, [this, waiting, shared, work = std::move(work), then = std::move(then)] {
    if (waiting->left()) return;
    std::exception_ptr error;
    try {
      work();
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    try {
      shared->connection->Post([this, waiting, shared, error, then] {
        if (waiting->left()) return;
        try {
          shared->request.memory = {};  // free for others before there is an answer
          if (error != nullptr) std::rethrow_exception(error);
          waiting->Become(then(*shared));
        } catch (const std::exception&) {
          shared->connection->Send(ErrorAnswer(shared->request, shared->id));
        }
      });
    } catch (const std::exception&) {  // no memory to say so
      shared->connection->Cut();
    }
  });
  if (taken) return waiting;
  call = std::move(*shared);
  throw RequestError(kTooManyRequests, "", full);
}

std::shared_ptr<Exchange> Api::Render(Call& call, ChatRequest conversation, Then then) {
  KeepMemory(conversation, &call.request.memory);
  const auto asked = std::make_shared<ChatRequest>(std::move(conversation));
  const auto rendered = std::make_shared<RenderedChat>();
  const Chat& chat = *Ready().model->chat;
  return Await(
      renders_, "as many chats wait for their prompt as may; try again in a moment", call,
      [asked, rendered, &chat] { *rendered = RenderNow(chat, std::move(*asked)); },
      [rendered, then = std::move(then)](Call& later) { return then(later, *rendered); });
}

std::shared_ptr<Exchange> Api::ChatCompletions(Call& call) {
  const ModelFacts& model = *Ready().model;
  ChatCall chat = ParseChat(std::move(call.TakeOrderedBody(ChatLists()).json), model);
  const auto request = std::make_shared<CompletionRequest>(std::move(chat.request));
  return Render(call, std::move(chat.conversation), [this, request, &model](Call& later, const RenderedChat& rendered) {
    SetPrompt(rendered, model, request.get());
    return StartCompletion(later, std::move(*request));
  });
}

std::shared_ptr<Exchange> Api::Tokenize(Call& call) {
  const ModelFacts& model = *Ready().model;
  ReleasedJson<OrderedJson> body = call.TakeOrderedBody();
  OrderedJson conversation = TakeConversation(&body.json);
  const Json rest = body.json;
  JsonFields fields(rest);
  const Tokenizer& tokenizer = RequireTokenizer(model);
  const auto answer = [&model](Call& asked, const std::vector<int32_t>& tokens) {
    return asked.Send({{"tokens", tokens}, {"count", tokens.size()}, {"max_model_len", model.context}});
  };
  if (conversation.contains("messages")) {
    return Render(call, ParseConversation(&conversation, fields, model),
                  [answer, &model](Call& later, const RenderedChat& rendered) {
                    return answer(later, ChatIds(rendered, model));
                  });
  }
  call.request.memory = {};
  const auto prompt = fields.String("prompt");
  if (!prompt) throw RequestError(kBadRequest, "prompt", "prompt: is missing; expected a string, or messages");
  EncodeOptions options;
  options.add_bos = fields.Bool("add_special_tokens", true);
  // As in vLLM: clients learn the id of a special token by sending its written form. Prompts of completions stay text.
  options.parse_special = fields.Bool("parse_special", true);
  CheckTextBytes(prompt->size(), "prompt", model);
  return answer(call, tokenizer.Encode(*prompt, options));
}

std::shared_ptr<Exchange> Api::Detokenize(Call& call) {
  const ModelFacts& model = *Ready().model;
  const ReleasedJson<Json> body = call.TakeBody();
  JsonFields fields(body.json);
  const Json* tokens = fields.Find("tokens");
  if (tokens == nullptr) throw RequestError(kBadRequest, "tokens", "tokens: is missing; expected a list of token ids");
  const Tokenizer& tokenizer = RequireTokenizer(model);
  std::vector<int32_t> ids = ReadIds(*tokens, "tokens", model.vocab_size);
  std::erase_if(ids, [&](int32_t id) { return id >= tokenizer.vocab_size(); });  // padding has no text
  return call.Send({{"prompt", tokenizer.Decode(ids)}});
}

// As in llama.cpp.
std::shared_ptr<Exchange> Api::ApplyTemplate(Call& call) {
  const ModelFacts& model = *Ready().model;
  ReleasedJson<OrderedJson> body = call.TakeOrderedBody();
  OrderedJson conversation = TakeConversation(&body.json);
  const Json rest = body.json;
  JsonFields fields(rest);
  return Render(call, ParseConversation(&conversation, fields, model), [](Call& later, const RenderedChat& rendered) {
    return later.Send({{"prompt", Chat::Text(rendered)}});
  });
}

}  // namespace stoch::serve
