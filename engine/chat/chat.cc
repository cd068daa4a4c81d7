// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/chat.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include "engine/chat/chat_files.h"
#include "kernels/base/error.h"
#include "loader/file.h"
#include "loader/quote.h"
#include "loader/sha256.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

constexpr int64_t kMaxTemplateBytes = int64_t{4} << 20;
constexpr const char* kDateForm = "%d %b %Y";
constexpr const char* kProbe = "stoch looks for this";  // in what a template writes

// Tokens that end a turn. Where a tokenizer has one, an answer ends there.
// Source: ggml-org/llama.cpp, src/llama-vocab.cpp, the texts of special_eog_ids; without those of base models' EOS.
constexpr std::array<std::string_view, 12> kTurnEnds = {"<|eot_id|>",    "<|eom_id|>",      "<|im_end|>",
                                                        "<|end|>",       "<|return|>",      "<|call|>",
                                                        "<end_of_turn>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>",
                                                        "<|endoftext|>", "<|eot|>",         "<EOT>"};

std::string ReadTemplate(const Tokenizer& tokenizer, const std::string& named) {
  if (named.empty()) {
    std::string source = tokenizer.chat_template();
    if (source.empty()) throw InvalidInput("the checkpoint has no chat template; --chat-template names one");
    return source;
  }
  for (const ChatFile& file : ChatTemplateFiles()) {
    if (file.name == named) return std::string(file.text);
  }
  std::error_code error;
  if (!std::filesystem::exists(named, error)) {
    throw InvalidInput("--chat-template " + Quoted(named) + ": there is no such file; names are " +
                       ChatTemplateNames());
  }
  return ReadSmallFile(named, kMaxTemplateBytes);
}

std::vector<int32_t> StopIds(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.eos_ids();
  for (const std::string_view name : kTurnEnds) {
    const auto id = tokenizer.FindSpecial(name);
    if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
  }
  return ids;
}

// In UTC: the same on every machine.
std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text;
  return {text.data(), std::strftime(text.data(), text.size(), kDateForm, &utc)};
}

// The beginning of a day in seconds since 1970, if that is one.
std::optional<std::time_t> BeginningOf(const std::string& date) {
  std::tm day{};
  const char* end = strptime(date.c_str(), kDateForm, &day);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return timegm(&day);
}

}  // namespace

Chat::Chat(const Tokenizer& tokenizer, const ChatSettings& settings)
    : tokenizer_(tokenizer),
      date_(settings.date),
      source_(ReadTemplate(tokenizer, settings.chat_template)),
      sha256_(Sha256Hex(source_)),
      specials_(tokenizer, source_),
      renderer_(std::make_unique<ChatRenderer>(
          ChatRenderer::Settings{.pythons = settings.pythons.empty() ? DefaultPythons() : settings.pythons,
                                 .unsafe = settings.unsafe},
          source_)),
      stop_ids_(StopIds(tokenizer)) {
  const OrderedJson part = {{"type", "text"}, {"text", kProbe}};
  wants_parts_ = !Shows(kProbe) && Shows(OrderedJson::array({part}));
}

// Whether a message with this content shows in the rendered text.
bool Chat::Shows(const OrderedJson& content) const {
  try {
    const OrderedJson message = {{"role", "user"}, {"content", content}};
    return Render({.messages = OrderedJson::array({message})}).text.find(kProbe) != std::string::npos;
  } catch (const InvalidInput&) {
    return false;
  }
}

std::string Chat::Date(const OrderedJson& kwargs) const {
  const auto given = kwargs.find("date_string");
  const bool is_asked = Mentions("strftime_now") || Mentions("date_string");
  if (given != kwargs.end() && given->is_string() && is_asked) return given->get<std::string>();
  if (!date_.empty() && is_asked) return date_;
  return Mentions("strftime_now") ? Today() : "";
}

RenderedChat Chat::Render(ChatRequest request) const {
  RenderedChat rendered;
  rendered.date = Date(request.kwargs);
  OrderedJson told = {{"messages", std::move(request.messages)},
                      {"tools", std::move(request.tools)},
                      {"documents", std::move(request.documents)},
                      {"kwargs", std::move(request.kwargs)}};
  rendered.mark = specials_.Mark(&told);
  OrderedJson kwargs = tokenizer_.named_tokens();
  kwargs.update(told["kwargs"]);
  told["kwargs"] = std::move(kwargs);
  if (!rendered.date.empty()) {
    const std::optional<std::time_t> now = BeginningOf(rendered.date);
    if (Mentions("date_string")) {
      told["kwargs"]["date_string"] = rendered.date;
    } else if (!now) {
      throw InvalidInput("date_string " + Quoted(rendered.date) + ": expected a date such as 26 Jul 2024");
    }
    told["now"] = now.value_or(std::time(nullptr));
  }
  told["add_generation_prompt"] = request.add_generation_prompt;
  told["continue_final_message"] = request.continue_final_message;
  rendered.text = SpecialText::Unescaped(renderer_->Render(told), rendered.mark);
  return rendered;
}

std::vector<int32_t> Chat::Encode(const RenderedChat& rendered) const {
  return tokenizer_.Encode(rendered.text, {.add_bos = false, .parse_special = true, .removed = rendered.mark});
}

std::string Chat::Text(const RenderedChat& rendered) {
  return rendered.mark.empty() ? rendered.text : ReplaceAll(rendered.text, rendered.mark, "");
}

std::unique_ptr<Chat> OpenChat(const Tokenizer& tokenizer, const ChatSettings& settings, std::string* why) {
  try {
    return std::make_unique<Chat>(tokenizer, settings);
  } catch (const InvalidInput& error) {
    if (!settings.chat_template.empty()) throw;
    *why = error.what();
    return nullptr;
  }
}

std::string ChatTemplateNames() {
  std::string names;
  for (const ChatFile& file : ChatTemplateFiles()) names += (names.empty() ? "" : ", ") + std::string(file.name);
  return names;
}

std::vector<std::string> DefaultPythons() {
  const char* given = std::getenv("STOCH_CHAT_PYTHON");
  if (given != nullptr && *given != '\0') return {given};
  return {"/usr/bin/python3", "python3"};
}

}  // namespace stoch
