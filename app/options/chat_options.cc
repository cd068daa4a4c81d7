// SPDX-License-Identifier: Apache-2.0
#include "app/options/chat_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace stoch::cli {

void AddChatOptions(CLI::App& command, ChatSettings* settings, CLI::Option* needed) {
  CLI::Option* const chosen =
      command.add_option("--chat-template", settings->chat_template,
                         fmt::format("Chat template: a Jinja file, or {}; default: the model's", ChatTemplateNames()));
  CLI::Option* const date = command.add_option(
      "--chat-date", settings->date,
      "Date for chat templates that write one, such as 26 Jul 2024; default: the template's, or today "
      "in UTC");
  CLI::Option* const unsafe =
      command.add_flag("--unsafe-templates", settings->unsafe,
                       "Render chat templates, which are code, where the system cannot confine them (no seccomp)");
  if (needed == nullptr) return;
  for (CLI::Option* option : {chosen, date, unsafe}) option->needs(needed);
}

}  // namespace stoch::cli
