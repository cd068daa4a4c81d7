// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/error.h"
#include "loader/tokenizer/chat/prompt_builder.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

// What the Mistral formats differ in.
struct MistralStyle {
  enum class System { kRefused, kInFirst, kInLast } system;
  std::string_view open, close;  // around [INST] and [/INST]: what stands in front of and after the words
  std::string_view before_answer;
  bool strips_answers;
};

MistralStyle StyleOf(ChatFormat format) {
  using System = MistralStyle::System;
  if (format == ChatFormat::kMistralV1) return {System::kInFirst, " [INST] ", " [/INST]", " ", false};
  if (format == ChatFormat::kMistralV3) return {System::kInLast, "[INST] ", "[/INST]", " ", true};
  if (format == ChatFormat::kMistralTekken) return {System::kInLast, "[INST]", "[/INST]", "", false};
  return {System::kRefused, "[INST] ", " [/INST]", "", false};
}

// Text with a word that newer tokenizers have a token for.
void WriteWord(const Tokenizer& tokenizer, std::string_view text, std::string_view word, PromptBuilder* prompt) {
  const auto id = tokenizer.FindSpecial(word);
  if (!id) return prompt->Text(text);
  const size_t at = text.find(word);
  prompt->Text(text.substr(0, at));
  prompt->Token(*id);
  prompt->Text(text.substr(at + word.size()));
}

}  // namespace

PromptBuilder WriteMistral(const Tokenizer& tokenizer, ChatFormat format, const std::vector<ChatMessage>& messages) {
  const MistralStyle style = StyleOf(format);
  const bool has_system = style.system != MistralStyle::System::kRefused && messages[0].role == "system";
  const size_t first = has_system ? 1 : 0;
  const int32_t eos = RequireEos(tokenizer, format);
  PromptBuilder prompt(tokenizer);
  prompt.Token(RequireBos(tokenizer, format));
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string_view expected = (i - first) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected) {
      throw InvalidInput("messages[" + std::to_string(i) +
                         "].role: Mistral conversations alternate user and assistant: expected " +
                         std::string(expected) + ", got " + messages[i].role);
    }
    if (expected == "user") {
      const size_t with_system = style.system == MistralStyle::System::kInFirst ? first : messages.size() - 1;
      WriteWord(tokenizer, style.open, "[INST]", &prompt);
      if (has_system && i == with_system) prompt.Text(messages[0].content + "\n\n");
      prompt.Text(messages[i].content);
      WriteWord(tokenizer, style.close, "[/INST]", &prompt);
    } else {
      const std::string& answer = messages[i].content;
      prompt.Text(std::string(style.before_answer) +
                  std::string(style.strips_answers ? StripLikePython(answer) : std::string_view(answer)));
      prompt.Token(eos);
    }
  }
  return prompt;
}

}  // namespace stoch
