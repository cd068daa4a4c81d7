// SPDX-License-Identifier: Apache-2.0
// stoch help: the reference of --sc, the manual page, or the help of another subcommand.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "app/options/sc_reference.h"
#include "app/output.h"
#include "kernels/base/error.h"
#include "tools/stoch/commands.h"
#include "tools/stoch/man_page.h"

namespace stoch::cli {

CommandBody AddHelp(CLI::App& command, const CLI::App& root) {
  command.description(
      "Help on a subcommand; `stoch help sc` prints every setting of --sc, `stoch help man` a manual page");
  command.footer(
      "Examples:\n"
      "  stoch help sc\n"
      "  stoch help generate\n"
      "  stoch help man | man -l -");
  auto topic = std::make_shared<std::string>();
  command.add_option("topic", *topic, "sc, man, or a subcommand");
  return [topic, &root] {
    if (topic->empty()) {
      // root.help() would be that of the subcommand that was parsed: this one.
      Print(root.get_formatter()->make_help(&root, root.get_name(), CLI::AppFormatMode::Normal));
      return kDone;
    }
    if (*topic == "sc") {
      Print(ScReference());
      return kDone;
    }
    if (*topic == "man") {
      Print(ManPage(root));
      return kDone;
    }
    std::vector<std::string> topics = {"sc", "man"};
    for (const CLI::App* known : root.get_subcommands([](const CLI::App*) { return true; })) {
      if (known->get_name() == *topic) {
        Print(known->help("stoch"));
        return kDone;
      }
      topics.push_back(known->get_name());
    }
    throw InvalidInput(fmt::format("help {}: allowed is {}", *topic, fmt::join(topics, ", ")));
  };
}

}  // namespace stoch::cli
