#include "loader/tokenizer/chat_template.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <initializer_list>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/text.h"

namespace stoch {
namespace {

bool Has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

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

// Ids of a prompt under construction. Text between special tokens is encoded as one piece, as it is when the whole
// rendered prompt is tokenized.
class PromptBuilder {
 public:
  explicit PromptBuilder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void Token(int32_t id) {
    Flush();
    ids_.push_back(id);
  }
  void Text(std::string_view text) { text_ += text; }
  std::vector<int32_t> Finish() {
    Flush();
    return std::move(ids_);
  }

 private:
  void Flush() {
    const auto piece = tokenizer_.Encode(text_, {.add_bos = false, .parse_special = false, .at_start = ids_.empty()});
    ids_.insert(ids_.end(), piece.begin(), piece.end());
    text_.clear();
  }

  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  std::string text_;
};

void CheckRoles(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) throw InvalidInput("messages: expected at least one, got none");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      throw InvalidInput("messages[" + std::to_string(i) + "].role: expected system, user or assistant, got " +
                         Quoted(role));
    }
    CheckUtf8(messages[i].content, "messages[" + std::to_string(i) + "].content");
  }
}

std::vector<int32_t> EncodeLlama2(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages) {
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
  if (messages.back().role != "user") {
    throw InvalidInput("messages: a Llama-2 conversation ends with a user message, got " + messages.back().role);
  }
  return prompt.Finish();
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

std::vector<int32_t> EncodeLlama3(const Tokenizer& tokenizer, ChatFormat format,
                                  const std::vector<ChatMessage>& messages, const ChatOptions& options) {
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
  header("assistant");
  return prompt.Finish();
}

std::vector<int32_t> EncodeChatMl(const Tokenizer& tokenizer, const std::vector<ChatMessage>& messages) {
  const int32_t start = RequireToken(tokenizer, ChatFormat::kChatMl, "<|im_start|>");
  const int32_t end = RequireToken(tokenizer, ChatFormat::kChatMl, "<|im_end|>");
  const std::string source = tokenizer.chat_template();
  const bool strips = Has(source, "trim") || Has(source, ".strip()");
  PromptBuilder prompt(tokenizer);
  if (Has(source, "bos_token")) prompt.Token(RequireBos(tokenizer, ChatFormat::kChatMl));
  for (const ChatMessage& message : messages) {
    prompt.Token(start);
    prompt.Text(message.role + "\n");
    const std::string_view content = message.content;
    prompt.Text(strips ? StripLikePython(content) : content);
    prompt.Token(end);
    prompt.Text("\n");
  }
  prompt.Token(start);
  prompt.Text("assistant\n");
  return prompt.Finish();
}

// Whether every `open` in the template goes on with a role the message brings (the string ends there) or one of
// `roles`: a template that writes another header itself says more than the format does.
bool HeadersAre(std::string_view source, std::string_view open, std::initializer_list<std::string_view> roles) {
  for (size_t at = source.find(open); at != std::string_view::npos; at = source.find(open, at + 1)) {
    const std::string_view rest = source.substr(at + open.size());
    const bool known =
        rest.starts_with('\'') || rest.starts_with('"') ||
        std::any_of(roles.begin(), roles.end(), [&](std::string_view role) {
          return rest.starts_with(role) && (rest.substr(role.size()).starts_with("<|end_header_id|>\n\n") ||
                                            rest.substr(role.size()).starts_with("\n"));
        });
    if (!known) return false;
  }
  return true;
}

}  // namespace

std::string_view ChatFormatName(ChatFormat format) {
  switch (format) {
    case ChatFormat::kLlama2: return "Llama-2";
    case ChatFormat::kLlama3: return "Llama-3";
    case ChatFormat::kLlama31: return "Llama-3.1";
    case ChatFormat::kChatMl: return "ChatML";
  }
  return "?";
}

ChatFormat DetectChatFormat(const Tokenizer& tokenizer) {
  // Inside Jinja strings some checkpoints write line ends as \\n, others as they are.
  const std::string source = ReplaceAll(tokenizer.chat_template(), "\\n", "\n");
  if (source.empty()) throw InvalidInput("the checkpoint has no chat template, so its chat format is not known");
  // Some Llama-2 files carry the prompt of a default that is switched off ("false == true").
  if (Has(source, "You are ") && !Has(source, "false == true")) {
    throw InvalidInput("the checkpoint's chat template has a system prompt of its own, which is not supported");
  }
  constexpr std::string_view kHeader = "<|start_header_id|>";
  constexpr std::string_view kImStart = "<|im_start|>";
  // That the template strips the messages and writes BOS belongs to the Llama formats.
  const bool llama = (Has(source, "trim") || Has(source, ".strip()")) && Has(source, "bos_token");
  const bool llama3 = llama && Has(source, kHeader) && Has(source, "<|eot_id|>");
  const bool llama2 =
      llama && Has(source, "bos_token + '[INST] '") && Has(source, "' [/INST]'") && Has(source, "<<SYS>>");
  const bool chat_ml = Has(source, kImStart) && Has(source, "<|im_end|>");
  if (llama3 && !llama2 && !chat_ml) {
    const bool dated = Has(source, "Cutting Knowledge Date: December 2023\n") && Has(source, "Today Date: ");
    if (dated && HeadersAre(source, kHeader, {"system", "user", "assistant", "ipython"})) return ChatFormat::kLlama31;
    if (!dated && HeadersAre(source, kHeader, {"user", "assistant"})) return ChatFormat::kLlama3;
  }
  if (llama2 && !llama3 && !chat_ml) return ChatFormat::kLlama2;
  if (chat_ml && !llama3 && !llama2 && HeadersAre(source, kImStart, {"user", "assistant"})) return ChatFormat::kChatMl;
  throw InvalidInput(
      "the checkpoint's chat template is none of the known formats (Llama-2, Llama-3, Llama-3.1, ChatML)");
}

std::string ChatDate(const Tokenizer& tokenizer, ChatFormat format, const ChatOptions& options) {
  switch (format) {
    case ChatFormat::kLlama31: return options.date.empty() ? TemplateDate(tokenizer.chat_template()) : options.date;
    case ChatFormat::kLlama2:
    case ChatFormat::kLlama3:
    case ChatFormat::kChatMl: break;
  }
  return "";
}

std::vector<int32_t> EncodeChat(const Tokenizer& tokenizer, ChatFormat format, const std::vector<ChatMessage>& messages,
                                const ChatOptions& options) {
  CheckRoles(messages);
  switch (format) {
    case ChatFormat::kLlama2: return EncodeLlama2(tokenizer, messages);
    case ChatFormat::kLlama3:
    case ChatFormat::kLlama31: return EncodeLlama3(tokenizer, format, messages, options);
    case ChatFormat::kChatMl: return EncodeChatMl(tokenizer, messages);
  }
  throw InvalidInput("unknown chat format");
}

std::vector<int32_t> ChatStopIds(const Tokenizer& tokenizer, ChatFormat format) {
  std::vector<int32_t> ids = tokenizer.eos_ids();
  const auto add = [&](std::string_view written) {
    const auto id = tokenizer.FindSpecial(written);
    if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
  };
  switch (format) {
    case ChatFormat::kLlama2: break;
    case ChatFormat::kLlama3:
    case ChatFormat::kLlama31:
      add("<|eot_id|>");
      add("<|eom_id|>");  // ends a turn that calls a tool
      break;
    case ChatFormat::kChatMl: add("<|im_end|>"); break;
  }
  return ids;
}

}  // namespace stoch
