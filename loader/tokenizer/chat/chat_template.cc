// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/chat/prompt_builder.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Whether the template writes whatever role a message brings.
bool TakesTools(ChatFormat format) { return format == ChatFormat::kChatMl || format == ChatFormat::kQwen2; }

void CheckRoles(const std::vector<ChatMessage>& messages, ChatFormat format) {
  if (messages.empty()) throw InvalidInput("messages: expected at least one, got none");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    const bool tool = role == "tool" && TakesTools(format);
    if (role != "system" && role != "user" && role != "assistant" && !tool) {
      throw InvalidInput("messages[" + std::to_string(i) + "].role: expected system, user or assistant, got " +
                         Quoted(role));
    }
    CheckUtf8(messages[i].content, "messages[" + std::to_string(i) + "].content");
  }
}

PromptBuilder WriteLlama2(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                          const ChatOptions& options) {
  const int32_t bos = RequireBos(tokenizer, ChatFormat::kLlama2);
  const std::vector<int32_t> eos = tokenizer.eos_ids();
  if (eos.empty()) throw InvalidInput("the Llama-2 chat format needs an EOS token, which the tokenizer does not have");
  const bool has_system = messages[0].role == "system";
  const size_t first = has_system ? 1 : 0;
  PromptBuilder prompt(tokenizer);
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string_view expected = (i - first) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected) {
      throw InvalidInput(
          "messages[" + std::to_string(i) + "].role: Llama-2 conversations alternate user and assistant " +
          "after an optional system message: expected " + std::string(expected) + ", got " + messages[i].role);
    }
    if (expected == "user") {
      std::string content = messages[i].content;
      if (i == first && has_system) content.insert(0, "<<SYS>>\n" + messages[0].content + "\n<</SYS>>\n\n");
      prompt.Token(bos);
      prompt.Text("[INST] " + std::string(StripLikePython(content)) + " [/INST]");
    } else {
      prompt.Text(" " + std::string(StripLikePython(messages[i].content)) + " ");
      prompt.Token(eos.front());
    }
  }
  if (options.add_generation_prompt && messages.back().role != "user") {
    throw InvalidInput("messages: a Llama-2 conversation ends with a user message, got " + messages.back().role);
  }
  return prompt;
}

std::string Today() {
  constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  const std::string day = std::to_string(utc.tm_mday);
  return (day.size() == 1 ? "0" + day : day) + " " + std::string(kMonths[static_cast<size_t>(utc.tm_mon)]) + " " +
         std::to_string(utc.tm_year + 1900);
}

// The date the template writes: its strftime_now where it has one, else the literal given to date_string.
std::string TemplateDate(std::string_view source) {
  if (Has(source, "strftime_now")) return Today();
  constexpr std::string_view kLiteral = "date_string = \"";
  const size_t at = source.find(kLiteral);
  if (at == std::string_view::npos) return "26 Jul 2024";
  const std::string_view rest = source.substr(at + kLiteral.size());
  return std::string(rest.substr(0, rest.find('"')));
}

PromptBuilder WriteLlama3(const Tokenizer& tokenizer, ChatFormat format, const std::vector<ChatMessage>& messages,
                          const ChatOptions& options) {
  const int32_t start = RequireToken(tokenizer, format, "<|start_header_id|>");
  const int32_t end = RequireToken(tokenizer, format, "<|end_header_id|>");
  const int32_t eot = RequireToken(tokenizer, format, "<|eot_id|>");
  PromptBuilder prompt(tokenizer);
  prompt.Token(RequireBos(tokenizer, format));
  const auto header = [&](std::string_view role) {
    prompt.Token(start);
    prompt.Text(role);
    prompt.Token(end);
    prompt.Text("\n\n");
  };
  size_t first = 0;
  if (format == ChatFormat::kLlama31) {
    const std::string date = ChatDate(tokenizer, format, options);
    header("system");
    prompt.Text("Cutting Knowledge Date: December 2023\nToday Date: " + date + "\n\n");
    if (messages[0].role == "system") prompt.Text(StripLikePython(messages[first++].content));
    prompt.Token(eot);
  }
  for (size_t i = first; i < messages.size(); ++i) {
    header(messages[i].role);
    prompt.Text(StripLikePython(messages[i].content));
    prompt.Token(eot);
  }
  // Llama-3's first template asks the assistant to speak in any case.
  if (options.add_generation_prompt || !Has(tokenizer.chat_template(), "add_generation_prompt")) header("assistant");
  return prompt;
}

// ChatML and what Qwen makes of it.
class ChatMlWriter {
 public:
  ChatMlWriter(const Tokenizer& tokenizer, ChatFormat format)
      : prompt_(tokenizer),
        start_(RequireToken(tokenizer, format, "<|im_start|>")),
        end_(RequireToken(tokenizer, format, "<|im_end|>")) {}

  PromptBuilder& prompt() { return prompt_; }
  void Open(std::string_view role) {
    prompt_.Token(start_);
    prompt_.Text(std::string(role) + "\n");
  }
  void Message(std::string_view role, std::string_view content) {
    Open(role);
    prompt_.Text(content);
    prompt_.Token(end_);
    prompt_.Text("\n");
  }

 private:
  PromptBuilder prompt_;
  int32_t start_, end_;
};

PromptBuilder WriteChatMl(const Tokenizer& tokenizer, ChatFormat format, const std::vector<ChatMessage>& messages,
                          const ChatOptions& options) {
  ChatMlWriter writer(tokenizer, format);
  bool strips = false;
  if (format == ChatFormat::kChatMl) {
    const std::string source = tokenizer.chat_template();
    strips = Has(source, "trim") || Has(source, ".strip()");
    if (Has(source, "bos_token")) writer.prompt().Token(RequireBos(tokenizer, format));
  } else if (messages[0].role != "system") {
    writer.Message("system", format == ChatFormat::kQwen2
                                 ? "You are a helpful assistant."
                                 : "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
  }
  for (const ChatMessage& message : messages) {
    writer.Message(message.role, strips ? StripLikePython(message.content) : message.content);
  }
  if (options.add_generation_prompt) writer.Open("assistant");
  return std::move(writer.prompt());
}

std::string_view StripLines(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) text.remove_prefix(1);
  while (right && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// An answer and the reasoning in front of it, as Qwen3's template tells them apart.
struct Answer {
  std::string_view reasoning, content;
};
Answer SplitReasoning(std::string_view content) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const size_t first = content.find(kEnd);
  if (first == std::string_view::npos) return {"", content};
  std::string_view reasoning = StripLines(content.substr(0, first), false, true);
  if (const size_t begin = reasoning.rfind(kBegin); begin != std::string_view::npos) {
    reasoning.remove_prefix(begin + kBegin.size());
  }
  const size_t last = content.rfind(kEnd);
  return {StripLines(reasoning, true, false), StripLines(content.substr(last + kEnd.size()), true, false)};
}

PromptBuilder WriteQwen3(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                         const ChatOptions& options) {
  ChatMlWriter writer(tokenizer, ChatFormat::kQwen3);
  const auto is_question = [](const ChatMessage& message) {
    const std::string_view content = message.content;
    return message.role == "user" && !(content.starts_with("<tool_response>") && content.ends_with("</tool_response>"));
  };
  const auto last = std::find_if(messages.rbegin(), messages.rend(), is_question);
  const size_t question =
      last == messages.rend() ? messages.size() - 1 : static_cast<size_t>(messages.rend() - last) - 1;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "assistant") {
      writer.Message(message.role, message.content);
      continue;
    }
    const Answer answer = SplitReasoning(message.content);
    if (i > question && (i + 1 == messages.size() || !answer.reasoning.empty())) {
      writer.Message(message.role, "<think>\n" + std::string(StripLines(answer.reasoning, true, true)) +
                                       "\n</think>\n\n" + std::string(StripLines(answer.content, true, false)));
    } else {
      writer.Message(message.role, answer.content);
    }
  }
  if (options.add_generation_prompt) {
    writer.Open("assistant");
    if (!options.enable_thinking.value_or(true)) writer.prompt().Text("<think>\n\n</think>\n\n");
  }
  return std::move(writer.prompt());
}

PromptBuilder WriteZephyr(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages,
                          const ChatOptions& options) {
  const int32_t eos = RequireEos(tokenizer, ChatFormat::kZephyr);
  PromptBuilder prompt(tokenizer);
  for (const ChatMessage& message : messages) {
    prompt.Text("<|" + message.role + "|>\n" + message.content);
    prompt.Token(eos);
    prompt.Text("\n");
  }
  if (options.add_generation_prompt) prompt.Text("<|assistant|>\n");
  return prompt;
}

PromptBuilder Write(const Tokenizer& tokenizer, ChatFormat format, const std::vector<ChatMessage>& messages,
                    const ChatOptions& options) {
  CheckRoles(messages, format);
  switch (format) {
    case ChatFormat::kLlama2: return WriteLlama2(tokenizer, messages, options);
    case ChatFormat::kLlama3:
    case ChatFormat::kLlama31: return WriteLlama3(tokenizer, format, messages, options);
    case ChatFormat::kChatMl:
    case ChatFormat::kQwen2:
    case ChatFormat::kQwen25: return WriteChatMl(tokenizer, format, messages, options);
    case ChatFormat::kQwen3: return WriteQwen3(tokenizer, messages, options);
    case ChatFormat::kMistral:
    case ChatFormat::kMistralV1:
    case ChatFormat::kMistralV3:
    case ChatFormat::kMistralTekken: return WriteMistral(tokenizer, format, messages);
    case ChatFormat::kZephyr: return WriteZephyr(tokenizer, messages, options);
  }
  throw InvalidInput("unknown chat format");
}

}  // namespace

int32_t RequireToken(const Tokenizer& tokenizer, ChatFormat format, std::string_view written) {
  if (const auto id = tokenizer.FindSpecial(written)) return *id;
  throw InvalidInput("the " + std::string(ChatFormatName(format)) + " chat format needs the token " +
                     std::string(written) + ", which the tokenizer does not have");
}

int32_t RequireBos(const Tokenizer& tokenizer, ChatFormat format) {
  if (const auto id = tokenizer.bos_id()) return *id;
  throw InvalidInput("the " + std::string(ChatFormatName(format)) +
                     " chat format needs a BOS token, which the tokenizer does not have");
}

int32_t RequireEos(const Tokenizer& tokenizer, ChatFormat format) {
  const std::vector<int32_t> eos = tokenizer.eos_ids();
  if (!eos.empty()) return eos.front();
  throw InvalidInput("the " + std::string(ChatFormatName(format)) +
                     " chat format needs an EOS token, which the tokenizer does not have");
}

std::string_view ChatFormatName(ChatFormat format) {
  switch (format) {
    case ChatFormat::kLlama2: return "Llama-2";
    case ChatFormat::kLlama3: return "Llama-3";
    case ChatFormat::kLlama31: return "Llama-3.1";
    case ChatFormat::kChatMl: return "ChatML";
    case ChatFormat::kQwen2: return "Qwen2";
    case ChatFormat::kQwen25: return "Qwen2.5";
    case ChatFormat::kQwen3: return "Qwen3";
    case ChatFormat::kMistral: return "Mistral";
    case ChatFormat::kMistralV1: return "Mistral-v1";
    case ChatFormat::kMistralV3: return "Mistral-v3";
    case ChatFormat::kMistralTekken: return "Mistral-v3-Tekken";
    case ChatFormat::kZephyr: return "Zephyr";
  }
  return "?";
}

std::string ChatDate(const Tokenizer& tokenizer, ChatFormat format, const ChatOptions& options) {
  switch (format) {
    case ChatFormat::kLlama31: return options.date.empty() ? TemplateDate(tokenizer.chat_template()) : options.date;
    case ChatFormat::kLlama2:
    case ChatFormat::kLlama3:
    case ChatFormat::kChatMl:
    case ChatFormat::kQwen2:
    case ChatFormat::kQwen25:
    case ChatFormat::kQwen3:
    case ChatFormat::kMistral:
    case ChatFormat::kMistralV1:
    case ChatFormat::kMistralV3:
    case ChatFormat::kMistralTekken:
    case ChatFormat::kZephyr: break;
  }
  return "";
}

std::vector<int32_t> EncodeChat(const Tokenizer& tokenizer, ChatFormat format, const std::vector<ChatMessage>& messages,
                                const ChatOptions& options) {
  return Write(tokenizer, format, messages, options).Ids();
}

std::string RenderChat(const Tokenizer& tokenizer, ChatFormat format, const std::vector<ChatMessage>& messages,
                       const ChatOptions& options) {
  return Write(tokenizer, format, messages, options).Rendered();
}

std::vector<int32_t> ChatStopIds(const Tokenizer& tokenizer, ChatFormat format) {
  std::vector<int32_t> ids = tokenizer.eos_ids();
  const auto add = [&](std::string_view written) {
    const auto id = tokenizer.FindSpecial(written);
    if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
  };
  switch (format) {
    case ChatFormat::kLlama2:
    case ChatFormat::kMistral:
    case ChatFormat::kMistralV1:
    case ChatFormat::kMistralV3:
    case ChatFormat::kMistralTekken:
    case ChatFormat::kZephyr: break;
    case ChatFormat::kLlama3:
    case ChatFormat::kLlama31:
      add("<|eot_id|>");
      add("<|eom_id|>");  // ends a turn that calls a tool
      break;
    case ChatFormat::kChatMl:
    case ChatFormat::kQwen2:
    case ChatFormat::kQwen25:
    case ChatFormat::kQwen3: add("<|im_end|>"); break;
  }
  return ids;
}

}  // namespace stoch
