// SPDX-License-Identifier: Apache-2.0
#include "models/sc_model_config.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/sc/sc_parameters.h"
#include "loader/near_name.h"
#include "models/sc_settings.h"

namespace stoch {
namespace {

// In the order of ScOperatorId: the matrices of a block, then the rest.
const std::array<ScOperatorEntry, kNumScOperators>& Operators() {
  static const std::array<ScOperatorEntry, kNumScOperators> operators = [] {
    std::array<ScOperatorEntry, kNumScOperators> entries = {};
    size_t i = 0;
    for (const LinearName& linear : LinearNames()) entries[i++] = {linear.name, linear.help};
    entries[i++] = {"lm_head", "logits; exact unless lm_head=1"};
    entries[i++] = {"qk", "scores of attention, q k^T"};
    entries[i++] = {"av", "output of attention's softmax, p v"};
    return entries;
  }();
  return operators;
}

constexpr std::array<AttentionEntry, 5> kAttentionModes = {{
    {"per_token", AttentionMode::kPerToken, "k and v are quantized once a token; causal and append-only"},
    {"per_head", AttentionMode::kPerHead, "one scale for a head's slice of a pass (published); a pass is a window"},
    {"per_row", AttentionMode::kPerRow, "one for each row, of v for each channel (published); a pass is a window"},
    {"exact", AttentionMode::kExact, "no stochastic computing in attention"},
    {"dilated", AttentionMode::kPerToken, "per_token on some positions (LongNet): needs `segments` and `dilation`",
     true},
}};

constexpr std::array<DilatedEntry, 2> kDilatedLists = {{
    {"segments", &ScDilatedConfig::segments, "tokens of a segment, for each pair; a query sees those of its own"},
    {"dilation", &ScDilatedConfig::dilation, "of these, head h sees every so many tokens, those at h mod dilation"},
}};

constexpr std::array<TableEntry, 3> kTables = {{
    {"silu", NonlinearFunction::kSilu, &ScTables::silu, "a table of SiLU, between gate and up"},
    {"softmax", NonlinearFunction::kExp, &ScTables::softmax, "a table of exp, in the softmax of attention"},
    {"rms_norm", NonlinearFunction::kRsqrt, &ScTables::rms_norm, "a table of 1 / sqrt on 1..4, in every RMSNorm"},
}};

constexpr std::array<ScPreset, 3> kPresets = {{
    {"halved", HalvedScModelConfig, "the default: the best accuracy for its cycles, and causal"},
    {"published", PublishedScModelConfig, "what the published simulator ran until mid 2026"},
    {"published-2026", Published2026ScModelConfig, "what it runs since, and its threshold tables are for"},
}};

bool Takes(ScOperatorId id, const ScParameter& parameter) {
  switch (parameter.use) {
    case ScParameterUse::kEveryProduct: return true;
    case ScParameterUse::kLinears: return !IsAttentionProduct(id);
    case ScParameterUse::kDecoderLinears: return !IsAttentionProduct(id) && id != ScOperatorId::kLmHead;
  }
  STOCH_CHECK(false);
}

bool IsAlwaysNamed(const ScParameter& parameter, const ScConfig& config) {
  if (parameter.name == "stoc_len" && config.gate == ScGate::kCounts) return true;  // no preset's
  return parameter.always_named != nullptr && parameter.always_named(config);
}

void SetAttention(ScModelConfig& config, AttentionMode mode) {
  config.attention = mode;
  config.dilated = {};
  const ScGranularity scope = mode == AttentionMode::kPerHead ? ScGranularity::kPerHead : ScGranularity::kPerRow;
  const auto set = [scope](ScOperatorConfigs& operators) {
    operators[static_cast<size_t>(ScOperatorId::kQk)].granularity = scope;
    operators[static_cast<size_t>(ScOperatorId::kAv)].granularity = scope;
  };
  set(config.operators);
  for (auto& [layer, operators] : config.layers) set(operators);
}

ScModelConfig MakePreset(bool halve, int stoc_len, int masks, AttentionMode attention) {
  ScModelConfig config;
  for (int i = 0; i < kNumScOperators; ++i) {
    ScConfig& op = config.operators[static_cast<size_t>(i)];
    op.halve = halve;
    op.stoc_len = stoc_len;
    op.scramble_masks = masks;
    op.chunk_d = IsAttentionProduct(OperatorAt(i)) ? 0 : 128;
  }
  SetAttention(config, attention);
  return config;
}

std::string JoinNames(const auto& entries) {
  std::string joined;
  for (const auto& entry : entries) joined += (joined.empty() ? "" : ", ") + std::string(entry.name);
  return joined;
}

void ApplyAttention(ScModelConfig& config, std::string_view value) {
  for (const AttentionEntry& entry : kAttentionModes) {
    if (entry.name != value) continue;
    ScDilatedConfig dilated = std::move(config.dilated);
    SetAttention(config, entry.mode);
    if (!entry.dilated) return;
    config.dilated = std::move(dilated);
    config.dilated.enabled = true;
    return;
  }
  Reject("attention", '\'' + std::string(value) + '\'', JoinNames(kAttentionModes));
}

const DilatedEntry* FindDilatedList(std::string_view name) {
  const auto found = std::find_if(kDilatedLists.begin(), kDilatedLists.end(),
                                  [name](const DilatedEntry& entry) { return entry.name == name; });
  return found == kDilatedLists.end() ? nullptr : &*found;
}

const TableEntry* FindTable(std::string_view name) {
  const auto found =
      std::find_if(kTables.begin(), kTables.end(), [name](const TableEntry& entry) { return entry.name == name; });
  return found == kTables.end() ? nullptr : &*found;
}

// Tokens as 2048:8192.
std::vector<int64_t> ParseTokenList(std::string_view name, std::string_view text) {
  constexpr int64_t kMaxTokens = INT32_MAX;
  std::vector<int64_t> values;
  for (std::string_view rest = text;;) {
    const std::string_view digits = rest.substr(0, rest.find(':'));
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 1 || value > kMaxTokens) {
      Reject(std::string(name), '\'' + std::string(text) + '\'', "numbers in 1..2^31-1 joined by :, as 2048:8192");
    }
    values.push_back(value);
    if (digits.size() == rest.size()) break;
    rest = rest.substr(digits.size() + 1);
  }
  if (values.size() > kMaxDilatedPairs) {
    Reject(std::string(name), std::to_string(values.size()) + " numbers",
           "at most " + std::to_string(kMaxDilatedPairs));
  }
  return values;
}

ScModelConfig ParsePreset(std::string_view value) {
  for (const ScPreset& preset : kPresets) {
    if (preset.name == value) return preset.make();
  }
  Reject("preset", '\'' + std::string(value) + '\'', JoinNames(kPresets));
}

// Layers as 0-3+28-31.
std::vector<int> ParseLayers(std::string_view text) {
  constexpr int kMaxLayer = 4095;
  std::vector<int> layers;
  const auto number = [&](std::string_view digits) {
    int value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0 || value > kMaxLayer) {
      Reject("layers", '\'' + std::string(text) + '\'', "ranges in 0..4095 joined by +, as 0-3+28-31");
    }
    return value;
  };
  for (std::string_view rest = text;;) {
    const size_t plus = rest.find('+');
    const std::string_view range = rest.substr(0, plus);
    const size_t dash = range.find('-');
    const int first = number(range.substr(0, dash));
    const int last = dash == std::string_view::npos ? first : number(range.substr(dash + 1));
    if (last < first) Reject("layers", '\'' + std::string(text) + '\'', "ranges that rise");
    for (int layer = first; layer <= last; ++layer) layers.push_back(layer);
    if (plus == std::string_view::npos) break;
    rest = rest.substr(plus + 1);
  }
  std::sort(layers.begin(), layers.end());
  layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
  return layers;
}

// "0-3+28-31" of ascending layers.
std::string LayersText(const std::vector<int>& layers) {
  std::string text;
  for (size_t i = 0, end; i < layers.size(); i = end) {
    end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    text += (text.empty() ? "" : "+") + std::to_string(layers[i]);
    if (end > i + 1) text += '-' + std::to_string(layers[end - 1]);
  }
  return text;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

void AddNames(const auto& entries, std::vector<std::string>* names) {
  for (const auto& entry : entries) names->emplace_back(entry.name);
}

// Errors: InvalidInput that lists the parameters, and tells the setting that is near.
const ScParameter& ParameterOf(std::string_view name) {
  try {
    return FindScParameter(name);
  } catch (const InvalidInput& error) {
    std::vector<std::string> known = {"preset", "attention", "lm_head"};
    AddNames(kDilatedLists, &known);
    AddNames(kTables, &known);
    AddNames(ScParameters(), &known);
    throw InvalidInput(error.what() + DidYouMean(name, known));
  }
}

// Says of a setting that takes no layers and no operator why, as "attention is one mode"; "" for any other setting.
std::string_view WholeModelSetting(std::string_view name) {
  if (name == "attention" || FindDilatedList(name) != nullptr) return "attention is one mode";
  if (FindTable(name) != nullptr) return "a table is one";
  if (name == "preset") return "a preset is";
  return name == "lm_head" ? "the LM head is one" : "";
}

[[noreturn]] void RejectPart(std::string_view part, std::string_view name, std::string_view value,
                             std::string_view what, std::string_view more = "") {
  throw InvalidInput("SC setting " + std::string(part) + '.' + std::string(name) + " = " + std::string(value) + ": " +
                     std::string(what) + " for the whole model" + std::string(more));
}

void SetOperatorParameter(ScOperatorConfigs& operators, std::string_view op, std::string_view name,
                          std::string_view value) {
  const auto& known = Operators();
  const auto found = std::find_if(known.begin(), known.end(), [op](const auto& e) { return e.name == op; });
  if (found == known.end()) {
    std::vector<std::string> names;
    AddNames(known, &names);
    throw InvalidInput("SC setting " + std::string(op) + '.' + std::string(name) + " names the unknown operator '" +
                       std::string(op) + "': known are " + JoinNames(Operators()) + DidYouMean(op, names));
  }
  const ScOperatorId id = OperatorAt(static_cast<int>(found - known.begin()));
  if (const std::string_view what = WholeModelSetting(name); !what.empty())
    RejectPart(op, name, value, what, ": it takes no operator");
  const ScParameter& parameter = ParameterOf(name);
  if (!Takes(id, parameter)) {
    std::vector<ScOperatorEntry> takers;
    for (int i = 0; i < kNumScOperators; ++i) {
      if (Takes(OperatorAt(i), parameter)) takers.push_back(Operators()[static_cast<size_t>(i)]);
    }
    throw InvalidInput("SC setting " + std::string(op) + '.' + std::string(name) + " = " + std::string(value) + ": " +
                       std::string(name) + " is a parameter of " + JoinNames(takers) + " only");
  }
  parameter.set(operators[static_cast<size_t>(id)], parameter, value);
}

// NAME or OPERATOR.NAME.
void SetParameter(ScOperatorConfigs& operators, std::string_view name, std::string_view value) {
  if (const size_t dot = name.find('.'); dot != std::string_view::npos) {
    SetOperatorParameter(operators, name.substr(0, dot), name.substr(dot + 1), value);
    return;
  }
  const ScParameter& parameter = ParameterOf(name);
  for (int i = 0; i < kNumScOperators; ++i) {
    if (Takes(OperatorAt(i), parameter)) parameter.set(operators[static_cast<size_t>(i)], parameter, value);
  }
}

void SetInLayers(ScModelConfig& config, std::string_view layers, std::string_view name, std::string_view value) {
  const std::string_view what = WholeModelSetting(name.starts_with("lm_head.") ? "lm_head" : name);
  if (!what.empty()) RejectPart(layers, name, value, what);
  for (const int layer : ParseLayers(layers)) {
    ScOperatorConfigs& own = config.layers.try_emplace(layer, config.operators).first->second;
    SetParameter(own, name, value);
    const auto head = static_cast<size_t>(ScOperatorId::kLmHead);
    own[head] = config.operators[head];
  }
}

void Apply(ScModelConfig& config, std::string_view setting) {
  const size_t equals = setting.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw InvalidInput("SC setting '" + std::string(setting) + "' is not of the form NAME=VALUE");
  }
  const std::string_view name = setting.substr(0, equals);
  const std::string_view value = setting.substr(equals + 1);
  if (name == "preset") {
    config = ParsePreset(value);
  } else if (name == "attention") {
    ApplyAttention(config, value);
  } else if (const DilatedEntry* list = FindDilatedList(name); list != nullptr) {
    config.dilated.*list->list = ParseTokenList(name, value);
  } else if (const TableEntry* table = FindTable(name); table != nullptr) {
    config.tables.*table->table = {std::string(value), nullptr};
  } else if (name == "lm_head") {
    if (value != "0" && value != "1") Reject("lm_head", '\'' + std::string(value) + '\'', "0, 1");
    config.sc_lm_head = value == "1";
  } else if (const size_t dot = name.find('.'); IsDigit(name[0]) && dot != std::string_view::npos) {
    SetInLayers(config, name.substr(0, dot), name.substr(dot + 1), value);
  } else {
    SetParameter(config.operators, name, value);
    for (auto& [layer, operators] : config.layers) SetParameter(operators, name, value);
  }
}

// Takes the lengths of a preset away, which are those of its streams and not of own counts.
void ForgetLengths(ScModelConfig* config) {
  const auto forget = [](ScOperatorConfigs& operators) {
    for (ScConfig& op : operators) op.stoc_len = op.gate == ScGate::kCounts ? op.stoc_len : 0;
  };
  forget(config->operators);
  for (auto& [layer, operators] : config->layers) forget(operators);
}

// `config` with the lengths of `given` where the counts are own. Requires: `given` has all layers of `config`.
ScModelConfig WithLengthsOfCounts(ScModelConfig config, const ScModelConfig& given) {
  const auto copy = [](const ScOperatorConfigs& from, ScOperatorConfigs* to) {
    for (size_t i = 0; i < from.size(); ++i) {
      if ((*to)[i].gate == ScGate::kCounts) (*to)[i].stoc_len = from[i].stoc_len;
    }
  };
  copy(given.operators, &config.operators);
  for (auto& [layer, operators] : config.layers) copy(given.layers.at(layer), &operators);
  return config;
}

// The settings that turn `preset` into `config`, each with a leading comma.
std::string Difference(const ScModelConfig& config, const ScModelConfig& preset) {
  std::string text;
  if (config.attention != preset.attention || config.dilated != preset.dilated) {
    text += ",attention=" + std::string(AttentionName(config));
    for (const DilatedEntry& entry : kDilatedLists) {
      const std::vector<int64_t>& list = config.dilated.*entry.list;
      if (!list.empty()) text += ',' + std::string(entry.name) + '=' + TokenListText(list);
    }
  }
  for (const TableEntry& entry : kTables) {
    const std::string& own = (config.tables.*entry.table).name;
    if (own != (preset.tables.*entry.table).name) text += ',' + std::string(entry.name) + '=' + own;
  }
  if (config.sc_lm_head != preset.sc_lm_head) text += ",lm_head=" + std::to_string(config.sc_lm_head ? 1 : 0);
  for (const ScParameter& parameter : ScParameters()) {
    const std::string name(parameter.name);
    // One setting for the most common value unless it is the preset's, then the exceptions.
    std::array<std::string, kNumScOperators> values;
    std::map<std::string, int> votes;
    std::string common, preset_value;
    bool common_named = false;
    for (int i = 0; i < kNumScOperators; ++i) {
      const ScOperatorId id = OperatorAt(i);
      if (!Takes(id, parameter)) continue;
      preset_value = parameter.get(preset.at(id), parameter);
      const std::string& value = values[static_cast<size_t>(i)] = parameter.get(config.at(id), parameter);
      ++votes[value];
      if (votes[value] > votes[common]) common = value;
    }
    for (int i = 0; i < kNumScOperators; ++i) {
      const bool has_common = Takes(OperatorAt(i), parameter) && values[static_cast<size_t>(i)] == common;
      common_named = common_named || (has_common && IsAlwaysNamed(parameter, config.at(OperatorAt(i))));
    }
    if (common != preset_value || common_named) text += ',' + name + '=' + common;
    for (int i = 0; i < kNumScOperators; ++i) {
      const std::string& value = values[static_cast<size_t>(i)];
      if (!Takes(OperatorAt(i), parameter) || value == common) continue;
      text += ',' + std::string(ScOperatorName(OperatorAt(i))) + '.' + name + '=' + value;
    }
  }
  return text;
}

// The settings of layers that differ from the others, equal ones in ranges, each with a leading comma.
std::string LayerDifference(const ScModelConfig& config) {
  std::string text;
  for (const ScParameter& parameter : ScParameters()) {
    for (int i = 0; i < kNumScOperators; ++i) {
      const ScOperatorId id = OperatorAt(i);
      if (!Takes(id, parameter) || id == ScOperatorId::kLmHead) continue;
      const std::string common = parameter.get(config.at(id), parameter);
      std::map<std::string, std::vector<int>> layers;
      for (const auto& [layer, operators] : config.layers) {
        const std::string value = parameter.get(operators[static_cast<size_t>(i)], parameter);
        const bool named = IsAlwaysNamed(parameter, operators[static_cast<size_t>(i)]);
        if (value != common || (named && !IsAlwaysNamed(parameter, config.at(id)))) layers[value].push_back(layer);
      }
      for (const auto& [value, some] : layers) {
        text += ',' + LayersText(some) + '.' + std::string(ScOperatorName(id)) + '.' + std::string(parameter.name) +
                '=' + value;
      }
    }
  }
  return text;
}

std::string FilesText(const ScModelFiles& files) {
  std::string text;
  if (!files.mp_sha.empty()) text += ",mp=" + files.mp_sha;
  if (files.normalise == ScNormalise::kCall) text += ",mp_normalise=call";
  if (!files.smooth_sha.empty()) text += ",smooth=" + files.smooth_sha;
  if (!files.mask_sha.empty()) text += ",mask=" + files.mask_sha;
  return text;
}

}  // namespace

std::span<const ScPreset> ScPresets() { return kPresets; }
std::span<const AttentionEntry> AttentionModes() { return kAttentionModes; }
std::span<const DilatedEntry> DilatedLists() { return kDilatedLists; }
std::span<const TableEntry> TableFunctions() { return kTables; }
std::span<const ScOperatorEntry> ScOperators() { return Operators(); }

void Reject(const std::string& name, std::string_view value, const std::string& allowed) {
  throw InvalidInput("SC setting " + name + " = " + std::string(value) + ": allowed is " + allowed);
}

void RejectExactProduct(std::string_view op) {
  throw InvalidInput("SC setting " + std::string(op) +
                     ".arith = fp: allowed in attention is attention = exact, for the whole model");
}

std::string TokenListText(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += (text.empty() ? "" : ":") + std::to_string(value);
  return text;
}

std::string_view ScOperatorName(ScOperatorId id) { return Operators()[static_cast<size_t>(id)].name; }

std::string_view AttentionName(const ScModelConfig& config) {
  for (const AttentionEntry& entry : kAttentionModes) {
    if (entry.mode == config.attention && entry.dilated == config.dilated.enabled) return entry.name;
  }
  return "?";
}

std::vector<DilatedPair> ScModelConfig::DilatedPairs() const {
  std::vector<DilatedPair> pairs;
  if (!dilated.enabled) return pairs;
  for (size_t i = 0; i < dilated.segments.size(); ++i) pairs.push_back({dilated.segments[i], dilated.dilation[i]});
  return pairs;
}

ScModelConfig HalvedScModelConfig() { return MakePreset(true, 128, 64, AttentionMode::kPerToken); }

ScModelConfig Published2026ScModelConfig() { return MakePreset(false, 256, 64, AttentionMode::kPerRow); }

ScModelConfig PublishedScModelConfig() { return MakePreset(false, 256, 256, AttentionMode::kPerHead); }

ScModelConfig ParseScModelConfig(std::span<const std::string> settings, const ScModelConfig& base) {
  ScModelConfig config = base;
  ScModelConfig given = base;  // without the lengths of presets
  ForgetLengths(&given);
  for (const std::string& list : settings) {
    for (std::string_view rest = list;;) {
      const size_t comma = rest.find(',');
      const std::string_view setting = rest.substr(0, comma);
      Apply(config, setting);
      Apply(given, setting);
      if (setting.starts_with("preset=")) ForgetLengths(&given);
      if (comma == std::string_view::npos) break;
      rest = rest.substr(comma + 1);
    }
  }
  std::erase_if(config.layers, [&](const auto& entry) { return entry.second == config.operators; });
  Validate(WithLengthsOfCounts(config, given));
  return config;
}

std::string Describe(const ScModelConfig& config) {
  std::string shortest;
  for (const ScPreset& preset : kPresets) {
    const std::string text = "preset=" + std::string(preset.name) + Difference(config, preset.make());
    if (shortest.empty() || text.size() < shortest.size()) shortest = text;
  }
  return shortest + LayerDifference(config) + FilesText(config.files);
}

}  // namespace stoch
