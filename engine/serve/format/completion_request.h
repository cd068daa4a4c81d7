// SPDX-License-Identifier: Apache-2.0
// The bodies of /v1/completions and /v1/chat/completions, checked and turned into requests to the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/chat.h"
#include "engine/request/request.h"
#include "engine/serve/format/json_fields.h"
#include "engine/serve/format/reasoning.h"
#include "engine/serve/format/tools.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch::serve {

// What HTTP threads may know of the model: fixed once it is loaded.
struct ModelFacts {
  std::string id;  // what clients call it
  int64_t vocab_size = 0;
  int64_t context = 0;                   // longest sequence, the KV cache's size counted
  int64_t max_choices = 0;               // sequences one request may ask for
  const Tokenizer* tokenizer = nullptr;  // null: ids only
  int64_t longest_token_bytes = 0;       // of the tokenizer: no text of more than context times this fits
  int64_t longest_written_bytes = 0;     // the same of texts with special tokens
  const Chat* chat = nullptr;            // null: none
  std::string chat_refusal = "this model has no chat template";  // where there is none: why
  // Whether a grammar is one, and takes no more to compile than it may. Errors: InvalidInput. Any thread, for a while.
  // Empty: there are no grammars, for that reason.
  std::function<void(const GrammarSpec&)> check_grammar;
  std::string grammar_refusal = "this server has no grammars";
  std::string precision, sc, device;  // for people
  int64_t created = 0;                // seconds since 1970

  // Set by the operator.
  int64_t max_answer_values = 1'000'000;
  std::optional<uint64_t> default_seed;  // none: one is drawn for every request that names none
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  ToolForm tools = ToolForm::kNone;  // of calls that a model makes by itself
};

// Everything a tokenizer says of the facts (it may be null; outlives them).
void SetTokenizer(const Tokenizer* tokenizer, ModelFacts* facts);

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // what echo shows
};

struct CompletionRequest {
  bool chat = false;
  std::vector<Prompt> prompts;
  int n = 1;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  GenerateRequest generate;                          // of every choice, but for prompt and sampling.choice
  bool negative_seed = false;                        // as it was given; it is told so
  std::string date;                                  // that the chat template wrote, if it writes one
  ReasoningStart reasoning = ReasoningStart::kNone;  // of the answers of a chat
  ToolForm tools = ToolForm::kNone;                  // likewise
  bool names_tool = false;                           // AskedTools::is_named
  std::string grammar_field;                         // that asks for generate.grammar
  IgnoredFields ignored;                             // hints, which no answer depends on

  bool wants_logprobs() const { return generate.top_logprobs >= 0; }
  size_t num_choices() const { return prompts.size() * static_cast<size_t>(n); }
  // Choices of one prompt are neighbours.
  const Prompt& prompt_of(size_t i) const { return prompts[i / static_cast<size_t>(n)]; }
  // The request of choice i.
  GenerateRequest Choice(size_t i) const;
  // No stream of it has more events, however long its choices become.
  int64_t MostEvents(int64_t context) const;
};

// A chat whose prompt is not made yet, which takes another process.
struct ChatCall {
  CompletionRequest request;
  ChatRequest conversation;
};

// Refuses a text that no context holds before it is tokenized, which takes far longer than to receive it.
// Errors: RequestError(400).
void CheckTextBytes(size_t bytes, const std::string& param, const ModelFacts& model);

// A body that passed every check a running engine would make.
// Bits:   a string prompt becomes the ids `stoch generate` makes of it; BOS is never added to ids. Defaults are those
//         of the OpenAI API.
// Errors: RequestError(400) naming field and index, also for fields of other servers that would change what is
//         answered; 404 for another model's name.
// grammars: TakeGrammars of the body as it came; null: what the body has of them. CheckGrammar is to follow.
CompletionRequest ParseCompletion(const SortedJson& body, const ModelFacts& model);
CompletionRequest ParseCompletion(const SortedJson& body, const OrderedJson& grammars, const ModelFacts& model);
ChatCall ParseChat(OrderedJson body, const ModelFacts& model);

// A conversation by itself (TakeConversation of a body, and the body's other fields), and its ids.
// Errors: RequestError(400) naming the field; also for a model without chat.
ChatRequest ParseConversation(OrderedJson* taken, JsonFields& fields, const ModelFacts& model);
std::vector<int32_t> ChatIds(const RenderedChat& rendered, const ModelFacts& model);
// The grammar of a request, which may take half a second. Errors: RequestError(400) naming the field.
void CheckGrammar(const CompletionRequest& request, const ModelFacts& model);
// The prompt, and what only it can tell. Errors: RequestError(400).
void SetPrompt(const RenderedChat& rendered, const ModelFacts& model, CompletionRequest* request);

}  // namespace stoch::serve
