// SPDX-License-Identifier: Apache-2.0
// Any text is either refused as a chat template with one sentence or recognised. The same text as a conversation, cut
// into messages at its line ends: every format refuses it, or has the ids of what it renders, and as many special tokens
// as the same conversation has whose messages say nothing.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "loader/tokenizer/chat/chat_template.h"
#include "tests/fuzz/tokenizer_fuzz.h"
#include "tests/loader/tokenizer_samples.h"

namespace {

using namespace stoch;
using fuzz::Check;

constexpr ChatFormat kFormats[] = {ChatFormat::kLlama2,    ChatFormat::kLlama3,        ChatFormat::kLlama31,
                                   ChatFormat::kChatMl,    ChatFormat::kQwen2,         ChatFormat::kQwen25,
                                   ChatFormat::kQwen3,     ChatFormat::kMistral,       ChatFormat::kMistralV1,
                                   ChatFormat::kMistralV3, ChatFormat::kMistralTekken, ChatFormat::kZephyr};

// Has the special tokens of every format.
std::unique_ptr<Tokenizer> WithTemplate(const std::string& chat_template) {
  nlohmann::json file = test::ByteLevelJson();
  int32_t id = test::kEot;
  for (const char* name : {"<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<think>", "</think>"}) {
    nlohmann::json token = file["added_tokens"][0];
    token["id"] = ++id;
    token["content"] = name;
    file["added_tokens"].push_back(token);
  }
  TokenizerSettings settings;
  settings.bos_token = "<|begin_of_text|>";
  settings.eos_token = "<|end_of_text|>";
  settings.chat_template = chat_template;
  return test::FromJson(file, settings);
}

std::vector<ChatMessage> Messages(const std::string& text) {
  std::vector<ChatMessage> messages;
  if (!text.empty() && text[0] == 's') messages.push_back({"system", ""});
  size_t begin = 0;
  while (begin <= text.size() && messages.size() < 16) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const bool answers = !messages.empty() && messages.back().role == "user";
    messages.push_back({answers ? "assistant" : "user", text.substr(begin, end - begin)});
    begin = end + 1;
  }
  return messages;
}

int64_t Specials(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer.IsSpecial(id); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto kTokenizer = WithTemplate("");
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::MayRefuse([&] { Check(!ChatFormatName(DetectChatFormat(*WithTemplate(text))).empty()); });
  const std::vector<ChatMessage> messages = Messages(text);
  std::vector<ChatMessage> silent = messages;
  for (ChatMessage& message : silent) message.content.clear();
  for (const ChatFormat format : kFormats) {
    fuzz::MayRefuse([&] {
      const ChatOptions options = {.date = "26 Jul 2024", .enable_thinking = size % 2 == 0};
      const std::vector<int32_t> ids = EncodeChat(*kTokenizer, format, messages, options);
      Check(fuzz::IsUtf8(RenderChat(*kTokenizer, format, messages, options)));
      Check(Specials(*kTokenizer, ids) == Specials(*kTokenizer, EncodeChat(*kTokenizer, format, silent, options)));
      Check(!ChatStopIds(*kTokenizer, format).empty());
    });
  }
  return 0;
}
