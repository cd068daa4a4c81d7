// SPDX-License-Identifier: Apache-2.0
// stoch completion: a script for bash, zsh or fish, made from the command line's own description.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "app/options/sc_reference.h"
#include "app/output.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

std::vector<std::string> CommandNames(const CLI::App& root) {
  std::vector<std::string> names;
  for (const CLI::App* command : root.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// "--model --file ...", with the - of short options where there is no long one.
std::vector<std::string> OptionNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// Options whose value is one of a few words.
struct Choices {
  std::string option, words;
};

std::vector<Choices> AllChoices() {
  return {{"--precision", "sc fp32 fp16"},
          {"--device", "auto cpu cuda:0"},
          {"--device-map", "auto balanced balanced_low_0 sequential"},
          {"--cpu-variant", "scalar avx2 avx512bw avx512vbmi neon"},
          {"--sc", ScCompletionWords()},
          {"--output", "md csv json jsonl"}};
}

constexpr const char* kShells = "bash zsh fish";

std::string BashChoices() {
  std::string cases;
  for (const Choices& choices : AllChoices()) {
    const char* const also = choices.option == "--output" ? "|-o" : "";
    cases += fmt::format("    {}{}) words=\"{}\" ;;\n", choices.option, also, choices.words);
  }
  return cases;
}

std::string BashScript(const CLI::App& root) {
  std::string cases;
  for (const std::string& name : CommandNames(root)) {
    cases += fmt::format(
        "      {}) words=\"{}\" ;;\n", name,
        name == "completion" ? kShells : fmt::format("{}", fmt::join(OptionNames(*root.get_subcommand(name)), " ")));
  }
  return fmt::format(R"(_stoch() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  COMPREPLY=()
  case "$previous" in
{choices}  esac
  if [ -z "$words" ] && [[ "$previous" == --* && "$current" != -* && "$COMP_CWORD" -gt 2 ]]; then
    COMPREPLY=($(compgen -f -- "$current"))
    return
  fi
  if [ -z "$words" ] && [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands} {options}"
  elif [ -z "$words" ]; then
    case "${{COMP_WORDS[1]}}" in
{cases}    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _stoch stoch
)",
                     fmt::arg("choices", BashChoices()), fmt::arg("commands", fmt::join(CommandNames(root), " ")),
                     fmt::arg("options", fmt::join(OptionNames(root), " ")), fmt::arg("cases", cases));
}

// In single quotes, for fish.
std::string Quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result + "'";
}

std::string FishOption(const std::string& command, const CLI::Option& option) {
  std::string line = fmt::format("complete -c stoch -n '__fish_seen_subcommand_from {}'", command);
  for (const std::string& name : option.get_lnames()) line += " -l " + name;
  for (const std::string& name : option.get_snames()) line += " -s " + name;
  if (option.get_items_expected_max() != 0) line += " -r";
  for (const Choices& choices : AllChoices()) {
    if (option.get_name() == choices.option) line += " -f -a " + Quoted(choices.words);
  }
  return line + " -d " + Quoted(option.get_description()) + "\n";
}

std::string FishScript(const CLI::App& root) {
  std::string script = "complete -c stoch -e\n";
  for (const std::string& name : CommandNames(root)) {
    const CLI::App& command = *root.get_subcommand(name);
    script += fmt::format("complete -c stoch -n __fish_use_subcommand -f -a {} -d {}\n", name,
                          Quoted(command.get_description()));
    for (const CLI::Option* option : command.get_options()) {
      if (!option->get_lnames().empty() || !option->get_snames().empty()) script += FishOption(name, *option);
    }
  }
  script += fmt::format("complete -c stoch -n '__fish_seen_subcommand_from completion' -f -a '{}'\n", kShells);
  script += "complete -c stoch -n __fish_use_subcommand -f -l version -d 'Print version and build facts'\n";
  return script + "complete -c stoch -n __fish_use_subcommand -f -l help -d 'Print the help'\n";
}

}  // namespace

CommandBody AddCompletion(CLI::App& command, const CLI::App& root) {
  command.description("A completion script for the shell");
  command.footer(
      "Examples:\n"
      "  source <(stoch completion bash)\n"
      "  source <(stoch completion zsh)\n"
      "  stoch completion fish | source");
  auto shell = std::make_shared<std::string>();
  command.add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [shell, &root] {
    // zsh runs bash completions through its own compatibility layer.
    if (*shell == "zsh") Print("autoload -Uz compinit bashcompinit && compinit -u && bashcompinit\n");
    Print(*shell == "fish" ? FishScript(root) : BashScript(root));
    return kDone;
  };
}

}  // namespace stoch::cli
