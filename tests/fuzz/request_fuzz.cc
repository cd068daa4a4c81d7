// SPDX-License-Identifier: Apache-2.0
// Any body is either refused with one sentence or makes a completion whose prompts and choices fit the model, and what
// the journal keeps of it is that request again. The same bytes are tried as a row of a journal.
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/serve/format/completion_request.h"
#include "engine/serve/format/stored_request.h"
#include "loader/bounded_json.h"
#include "loader/tokenizer/kinds.h"
#include "tests/fuzz/try.h"
#include "tests/loader/tokenizer_samples.h"

namespace {

using namespace stoch;
using test::Check;
using test::Try;

serve::ModelFacts Facts(const Tokenizer* tokenizer, const Chat* chat, int64_t vocab_size) {
  serve::ModelFacts facts;
  facts.id = "fuzz";
  facts.vocab_size = vocab_size;
  facts.context = 64;
  facts.max_choices = 4;
  facts.max_answer_values = 1000;
  facts.default_seed = 1;
  facts.chat = chat;
  serve::SetTokenizer(tokenizer, &facts);
  return facts;
}

void CheckRequest(const serve::CompletionRequest& request, const serve::ModelFacts& model) {
  Check(request.num_choices() >= 1 && request.num_choices() <= static_cast<size_t>(model.max_choices));
  for (const serve::Prompt& prompt : request.prompts) {
    Check(!prompt.ids.empty() && static_cast<int64_t>(prompt.ids.size()) <= model.context);
    for (const int32_t id : prompt.ids) Check(id >= 0 && id < model.vocab_size);
  }
  for (size_t i = 0; i < request.num_choices(); ++i) Check(!request.Choice(i).prompt.empty());
  const std::string stored = serve::Store({request, {}});
  Check(serve::Store(serve::Restore(stored)) == stored);
}

void CheckChat(const std::string& text, const serve::ModelFacts& model) {
  constexpr int kDepth = 32;
  serve::ChatCall call =
      serve::ParseChat(ConsumeOrderedJson(text, "the request body", kDepth, kMaxJsonFileValues, INT64_MAX), model);
  serve::SetPrompt(model.chat->Render(std::move(call.conversation)), model, &call.request);
  CheckRequest(call.request, model);
}

// Null where this machine has no jinja2: then chats are refused.
std::unique_ptr<Chat> Open(const Tokenizer& tokenizer) {
  std::string why;
  return OpenChat(tokenizer, {}, &why);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto kTokenizer = [] {
    nlohmann::json file = test::ByteLevelJson();
    file["added_tokens"][2]["content"] = "<|im_start|>";
    file["added_tokens"][3]["content"] = "<|im_end|>";
    TokenizerSettings settings;
    settings.bos_token = "<|begin_of_text|>";
    settings.eos_token = "<|end_of_text|>";
    settings.chat_template =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
        "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    return test::FromJson(file, settings);
  }();
  static const std::unique_ptr<Chat> kChat = Open(*kTokenizer);
  static const serve::ModelFacts kFacts = Facts(kTokenizer.get(), kChat.get(), 300);
  static const serve::ModelFacts kFewer = Facts(kTokenizer.get(), kChat.get(), 200);  // than the tokenizer has
  static const serve::ModelFacts kIdsOnly = Facts(nullptr, nullptr, 200);
  const std::string text(reinterpret_cast<const char*>(data), size);
  Try([&] {
    const nlohmann::json body = ParseBoundedJson(text, "the request body");
    for (const serve::ModelFacts* facts : {&kFacts, &kFewer, &kIdsOnly}) {
      Try([&] { CheckRequest(serve::ParseCompletion(body, *facts), *facts); });
      Try([&] { CheckChat(text, *facts); });
    }
  });
  Try([&] { serve::Store(serve::Restore(text)); });
  return 0;
}
