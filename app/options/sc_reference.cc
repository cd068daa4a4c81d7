// SPDX-License-Identifier: Apache-2.0
#include "app/options/sc_reference.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "kernels/sc/sc_parameters.h"
#include "models/sc_settings.h"

namespace stoch::cli {
namespace {

constexpr std::string_view kHead = R"(# The --sc option

Every operator of a model that runs in stochastic computing (SC) has a configuration. `--sc` changes it. This page is
printed by `stoch help sc`, which makes it from the lists that the parser uses; a test compares the two.

`--sc` takes settings separated by commas. Later ones override earlier ones, and the option may be given several times:

    stoch generate --model DIR --sc preset=published,attention=per_token --sc down_proj.stoc_len=64

| form | meaning |
|---|---|
| `preset=NAME` | everything below at once |
| `attention=MODE` | how attention is done |
| `segments=W:W...`, `dilation=R:R...` | the pairs of `attention=dilated`, as `segments=2048:8192,dilation=1:4` |
| `lm_head=0` or `1` | LM head exact (the default) or in SC |
| `silu=FILE`, `softmax=FILE`, `rms_norm=FILE` | a table in the place of a function, of the whole model |
| `NAME=VALUE` | a parameter, on every operator that takes it |
| `OPERATOR.NAME=VALUE` | the same on one operator |
| `LAYERS.NAME=VALUE`, `LAYERS.OPERATOR.NAME=VALUE` | the same in some layers: ranges joined by +, as `0-3+28-31` |

What does not parse, or does not go together, is one error that names the setting, its value and what is allowed, before
any work. The meaning of each parameter in full: [sc_arithmetic.md](sc_arithmetic.md).
)";

template <typename Entries>
std::string Table(std::string_view head, const Entries& entries) {
  std::string text = fmt::format("\n## {}\n\n| value | meaning |\n|---|---|\n", head);
  for (const auto& entry : entries) text += fmt::format("| `{}` | {} |\n", entry.name, entry.help);
  return text;
}

std::string_view TypeOf(const ScParameter& parameter) {
  switch (parameter.kind) {
    case ScParameterKind::kInteger: return "whole number";
    case ScParameterKind::kFlag: return "0 or 1";
    case ScParameterKind::kChoice: return "one of";
    case ScParameterKind::kList: return "list";
    case ScParameterKind::kText: return "text";
  }
  return "";
}

std::string_view UseOf(const ScParameter& parameter) {
  switch (parameter.use) {
    case ScParameterUse::kEveryProduct: return "every operator";
    case ScParameterUse::kLinears: return "linears and LM head, not qk and av";
    case ScParameterUse::kDecoderLinears: return "linears of decoder layers";
  }
  return "";
}

// "whole number, 3..8"
std::string TypeAndRange(const ScParameter& parameter) {
  if (!parameter.range.empty()) return fmt::format("{}, {}", TypeOf(parameter), parameter.range);
  if (parameter.kind == ScParameterKind::kInteger) {
    const std::string high = parameter.high == INT32_MAX ? "2^31-1" : std::to_string(parameter.high);
    return fmt::format("{}, {}..{}", TypeOf(parameter), parameter.low, high);
  }
  std::vector<std::string_view> names;
  for (const ScChoice& choice : parameter.choices) names.push_back(choice.name);
  return names.empty() ? std::string(TypeOf(parameter))
                       : fmt::format("{} {}", TypeOf(parameter), fmt::join(names, ", "));
}

std::string DefaultOf(const ScParameter& parameter) {
  if (!parameter.default_text.empty()) return std::string(parameter.default_text);
  const std::string value = parameter.get(ScConfig{}, parameter);
  return value.empty() ? "none" : value;
}

std::string Describe(const ScParameter& parameter) {
  std::string text = fmt::format("\n### {}\n{}\n", parameter.name, parameter.help);
  text += fmt::format("Value: {}; default of a product: {}.", TypeAndRange(parameter), DefaultOf(parameter));
  std::string presets;
  for (const ScPreset& preset : ScPresets()) {
    const std::string value = parameter.get(preset.make().at(ScOperatorId::kQProj), parameter);
    if (value == parameter.get(ScConfig{}, parameter)) continue;
    presets += fmt::format("{}{} in `{}`", presets.empty() ? "" : ", ", value, preset.name);
  }
  if (!presets.empty()) text += fmt::format(" In presets: {}.", presets);
  if (parameter.use != ScParameterUse::kEveryProduct) text += fmt::format(" Taken by: {}.", UseOf(parameter));
  text += '\n';
  if (!parameter.choices.empty()) text += '\n';
  for (const ScChoice& choice : parameter.choices) text += fmt::format("- `{}`: {}\n", choice.name, choice.help);
  return text;
}

}  // namespace

std::string ScReference() {
  std::string text(kHead);
  text += Table("Presets", ScPresets());
  text += "\nIn full:\n\n";
  for (const ScPreset& preset : ScPresets()) {
    const ScModelConfig config = preset.make();
    text += fmt::format("- `{}`: `{}` for linears, `attention={}`\n", preset.name,
                        stoch::Describe(config.at(ScOperatorId::kQProj)), AttentionName(config));
  }
  text += Table("Attention", AttentionModes());
  text += Table("Lists of attention=dilated", DilatedLists());
  text += Table("Tables of functions", TableFunctions());
  text += Table("Operators", ScOperators());
  text += "\n## Parameters\n\nEvery operator takes a parameter unless its list says which do.\n";
  for (const ScParameter& parameter : ScParameters()) text += Describe(parameter);
  return text;
}

std::string ScCompletionWords() {
  std::vector<std::string> words;
  for (const ScPreset& preset : ScPresets()) words.push_back(fmt::format("preset={}", preset.name));
  for (const AttentionEntry& entry : AttentionModes()) words.push_back(fmt::format("attention={}", entry.name));
  for (const DilatedEntry& entry : DilatedLists()) words.push_back(fmt::format("{}=", entry.name));
  for (const TableEntry& entry : TableFunctions()) words.push_back(fmt::format("{}=", entry.name));
  words.emplace_back("lm_head=1");
  for (const ScParameter& parameter : ScParameters()) words.push_back(fmt::format("{}=", parameter.name));
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace stoch::cli
