// SPDX-License-Identifier: Apache-2.0
// The interactive conversation of `stoch generate --chat`.
#pragma once

#include <string>

#include "app/command.h"
#include "app/common_options.h"
#include "engine/chat/chat.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch::cli {

// A message, its content as the template reads it.
OrderedJson Message(const std::string& role, const std::string& text, const Chat& chat);

// Goes on with a conversation: reads what the user says line by line from standard input and streams the answers, until the input ends. Ctrl-C ends
// the answer at hand, and the conversation where none is. A line that cannot be taken (invalid UTF-8, more than the context
// has room for) is an error in the log, and the conversation goes on without it.
// Errors: InvalidInput where standard input cannot be read.
ExitCode RunChat(Engine& engine, const Tokenizer& tokenizer, const Chat& chat, ChatRequest conversation,
                 GenerateRequest request, const OutputOptions& output);

}  // namespace stoch::cli
