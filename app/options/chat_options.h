// SPDX-License-Identifier: Apache-2.0
// --chat-template, --chat-date and --unsafe-templates, of commands that render conversations.
#pragma once

#include "engine/chat/chat.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stoch::cli {

// needed: the option without which these mean nothing; null: none.
void AddChatOptions(CLI::App& command, ChatSettings* settings, CLI::Option* needed = nullptr);

}  // namespace stoch::cli
