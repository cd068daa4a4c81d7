// SPDX-License-Identifier: Apache-2.0
// stoch completion: a script for bash or zsh, made from the command line's own description.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/options/sc_reference.h"
#include "app/output.h"

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
constexpr const char* kChoices =
    R"(    --precision) words="sc fp32 fp16" ;;
    --device) words="auto cpu cuda:0" ;;
    --device-map) words="auto balanced balanced_low_0 sequential" ;;
    --cpu-variant) words="scalar avx2 avx512bw avx512vbmi neon" ;;
    --sc) words="{sc}" ;;
    --output|-o) words="md csv json jsonl" ;;
)";

std::string BashScript(const CLI::App& root) {
  std::string cases;
  for (const std::string& name : CommandNames(root)) {
    cases += fmt::format(
        "      {}) words=\"{}\" ;;\n", name,
        name == "completion" ? "bash zsh" : fmt::format("{}", fmt::join(OptionNames(*root.get_subcommand(name)), " ")));
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
                     fmt::arg("choices", fmt::format(kChoices, fmt::arg("sc", ScCompletionWords()))),
                     fmt::arg("commands", fmt::join(CommandNames(root), " ")),
                     fmt::arg("options", fmt::join(OptionNames(root), " ")), fmt::arg("cases", cases));
}

}  // namespace

CommandBody AddCompletion(CLI::App& command, const CLI::App& root) {
  command.description("A completion script for the shell");
  command.footer(
      "Examples:\n"
      "  source <(stoch completion bash)\n"
      "  source <(stoch completion zsh)");
  auto shell = std::make_shared<std::string>();
  command.add_option("shell", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  return [shell, &root] {
    // zsh runs bash completions through its own compatibility layer.
    if (*shell == "zsh") Print("autoload -Uz compinit bashcompinit && compinit -u && bashcompinit\n");
    Print(BashScript(root));
    return kDone;
  };
}

}  // namespace stoch::cli
