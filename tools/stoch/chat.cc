// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/chat.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "app/host/descriptors.h"
#include "app/host/standard_error.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/report/generate.h"
#include "kernels/base/error.h"

namespace stoch::cli {
namespace {

constexpr size_t kLongestLine = size_t{16} << 20;  // bytes: far more than any context holds

struct Line {
  std::string text;       // without its end
  bool is_whole = false;  // false: longer than kLongestLine; the rest was left out
};

// One line of standard input; nullopt at the end of the input or after Ctrl-C. Errors: InvalidInput.
std::optional<Line> ReadInputLine(bool prompt) {
  if (prompt) Print("> ");
  Line line;
  bool any = false;
  char c = 0;
  // A byte at a time: nothing that belongs to the next line is taken.
  while (!InterruptFlag()) {
    const ssize_t count = ReadSome(STDIN_FILENO, &c, 1);
    if (count == 1 && c != '\n') {
      any = true;
      if (line.text.size() <= kLongestLine) line.text += c;
    } else if (count == 1 || (count == 0 && any)) {
      line.is_whole = line.text.size() <= kLongestLine;
      return line;
    } else if (count == 0) {
      break;
    } else if (errno != EINTR) {
      throw InvalidInput(std::string("standard input: cannot be read: ") + std::strerror(errno));
    }
  }
  return std::nullopt;
}

// Errors: InvalidInput where no token of an answer would have room.
void CheckFits(const std::vector<int32_t>& prompt, int64_t context) {
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (tokens < context) return;
  throw InvalidInput(fmt::format(
      "the conversation with this line has {} tokens, and an answer; the context has room for {}", tokens, context));
}

}  // namespace

OrderedJson Message(const std::string& role, const std::string& text, const Chat& chat) {
  OrderedJson content = text;
  if (chat.wants_parts()) {
    const OrderedJson part = {{"type", "text"}, {"text", text}};
    content = OrderedJson::array({part});
  }
  return {{"role", role}, {"content", std::move(content)}};
}

ExitCode RunChat(Engine& engine, const Tokenizer& tokenizer, const Chat& chat, ChatRequest conversation,
                 GenerateRequest request, const OutputOptions& output) {
  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  OrderedJson& messages = conversation.messages;
  request.stop_ids = chat.stop_ids();
  GenerateCallbacks callbacks;
  callbacks.cancel = &InterruptFlag();
  callbacks.on_text = [](std::string_view text) { Print(text); };
  if (terminal && !output.quiet) PrintError("Each line is a message. Ctrl-C ends an answer, Ctrl-D the chat.\n");
  while (const std::optional<Line> line = ReadInputLine(terminal)) {
    if (line->text.empty()) continue;
    messages.push_back(Message("user", line->text, chat));
    try {
      if (!line->is_whole) throw InvalidInput(fmt::format("a line has more than {} bytes", kLongestLine));
      request.prompt = chat.Encode(conversation);
      CheckFits(request.prompt, engine.shape().context);
    } catch (const InvalidInput& error) {  // of this line: the conversation stays as it was before
      spdlog::error("{} (the line is left out)", OneLine(error.what()));
      messages.erase(messages.size() - 1);
      continue;
    }
    const GenerateResult result = Generate(engine, &tokenizer, request, callbacks);
    PrintLine("");
    messages.push_back(Message("assistant", result.text, chat));
    if (!output.quiet) PrintSummary(engine, request, result, {});
    if (result.finish_reason == FinishReason::kCancelled) ResumeAfterInterrupt();
  }
  if (terminal) PrintLine("");
  return kDone;
}

}  // namespace stoch::cli
