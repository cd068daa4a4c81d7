// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/man_page.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>
#include <string_view>

#include "app/options/twins.h"
#include "app/version.h"

namespace stoch::cli {
namespace {

// Text as roff shows it: no escapes, no requests, and a minus that can be copied.
std::string Roff(std::string_view text) {
  std::string result;
  bool begins = true;
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) result += "\\&";
    switch (c) {
      case '\\': result += "\\e"; break;
      case '-': result += "\\-"; break;
      case '\'': result += "\\(aq"; break;
      case '`': result += "\\(ga"; break;
      case '^': result += "\\(ha"; break;
      case '~': result += "\\(ti"; break;
      default: result += c;
    }
    begins = c == '\n';
  }
  return result;
}

// "MODEL, --model TEXT": every name of the option, first that of one that may stand by itself.
std::string Names(const CLI::Option& option) {
  std::string names;
  if (const std::string alone = option.get_name(true); !alone.empty()) names = "\\fI" + Roff(alone) + "\\fR";
  const auto add = [&](const std::string& name) { names += (names.empty() ? "\\fB" : ", \\fB") + Roff(name) + "\\fR"; };
  for (const std::string& name : option.get_snames()) add("-" + name);
  for (const std::string& name : option.get_lnames()) add("--" + name);
  const std::string type = option.get_type_name();
  if (option.get_items_expected_max() != 0 && !type.empty())
    names += " \\fI" + Roff(type.substr(0, type.find(':'))) + "\\fR";
  return names;
}

std::string OptionEntry(const CLI::Option& option) {
  std::string text = fmt::format(".TP\n{}\n{}", Names(option), Roff(option.get_description()));
  if (!option.get_default_str().empty()) text += Roff(fmt::format(" [{}]", option.get_default_str()));
  return text + "\n";
}

// A footer: its examples as they are typed, everything else as paragraphs.
std::string Footer(const std::string& footer) {
  std::istringstream lines(footer);
  std::string text, line;
  bool typed = false;
  while (std::getline(lines, line)) {
    const bool is_example = line.starts_with("  ");
    if (is_example != typed) text += is_example ? ".PP\n.nf\n" : ".fi\n.PP\n";
    typed = is_example;
    text += Roff(line) + "\n";
  }
  return typed ? text + ".fi\n" : text;
}

std::string Command(const CLI::App& command) {
  std::string text = fmt::format(".SS {}\n{}\n", Roff("stoch " + command.get_name()), Roff(command.get_description()));
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty() || option->get_name() == "--help") continue;
    text += OptionEntry(*option);
  }
  return text + ".PP\n" + Footer(command.get_footer());
}

}  // namespace

std::string ManPage(const CLI::App& root) {
  // Without a date: the page of a version is the same wherever it is made.
  std::string page = fmt::format(
      ".TH STOCH 1 \"\" \"{}\" \"User Commands\"\n.SH NAME\nstoch \\- {}\n"
      ".SH SYNOPSIS\n.B stoch\n.I COMMAND\n.RI [ OPTIONS ]\n",
      Roff(VersionLine()), Roff(root.get_description()));
  page +=
      ".SH DESCRIPTION\nOptions that a command line leaves out are taken from the environment, then from the file of\n"
      ".BR \\-\\-config .\n"
      "A variable is the name of the option in capitals after STOCH_, with _ for every \\-: STOCH_MAX_QUEUE is\n"
      ".BR \\-\\-max\\-queue .\n"
      "The file is YAML, a mapping of options by their names. The settings of\n.B \\-\\-sc\nare listed by\n"
      ".BR \"stoch help sc\" .\n";
  page += Footer(root.get_footer());
  page += ".SH COMMANDS\n";
  for (const CLI::App* command : root.get_subcommands([](const CLI::App* each) { return !each->get_name().empty(); })) {
    if (!command->get_group().empty()) page += Command(*command);
  }
  return page;
}

}  // namespace stoch::cli
