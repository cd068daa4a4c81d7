// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <vector>

#include "tools/stoch/interrupt.h"
#include "tools/stoch/output.h"
#include "tools/stoch/report/generate.h"

namespace stoch::cli {
namespace {

// One line of standard input without its end; nullopt at the end of the input or after Ctrl-C.
std::optional<std::string> ReadInputLine(bool prompt) {
  if (prompt) Print("> ");
  std::string line;
  char c = 0;
  // A byte at a time: nothing that belongs to the next line is taken.
  while (!InterruptFlag()) {
    const ssize_t count = read(STDIN_FILENO, &c, 1);
    if (count == 1 && c != '\n') {
      line += c;
    } else if (count == 1 || (count == 0 && !line.empty())) {
      return line;
    } else if (count == 0 || errno != EINTR) {
      break;
    }
  }
  return std::nullopt;
}

}  // namespace

ExitCode RunChat(Engine& engine, const Tokenizer& tokenizer, ChatFormat format, GenerateRequest request,
                 const std::string& system, const ChatOptions& chat, const OutputOptions& output) {
  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", system});
  request.stop_ids = ChatStopIds(tokenizer, format);
  GenerateCallbacks callbacks;
  callbacks.cancel = &InterruptFlag();
  callbacks.on_text = [](std::string_view text) { Print(text); };
  while (const std::optional<std::string> line = ReadInputLine(terminal)) {
    if (line->empty()) continue;
    messages.push_back({"user", *line});
    request.prompt = EncodeChat(tokenizer, format, messages, chat);
    const GenerateResult result = Generate(engine, &tokenizer, request, callbacks);
    PrintLine("");
    messages.push_back({"assistant", result.text});
    if (!output.quiet) PrintSummary(engine, request, result, {});
    if (result.finish_reason == FinishReason::kCancelled) ResumeAfterInterrupt();
  }
  if (terminal) PrintLine("");
  return kDone;
}

}  // namespace stoch::cli
