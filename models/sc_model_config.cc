#include "models/sc_model_config.h"

#include <algorithm>
#include <map>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/sc/sc_parameters.h"
#include "models/sc_settings.h"

namespace stoch {
namespace {

// In the order of ScOperatorId.
constexpr std::array<ScOperatorEntry, kNumScOperators> kOperators = {{
    {"q_proj", "queries of attention"},
    {"k_proj", "keys"},
    {"v_proj", "values"},
    {"o_proj", "output of attention"},
    {"gate_proj", "gate of the feed-forward network"},
    {"up_proj", "its other half"},
    {"down_proj", "output of the feed-forward network"},
    {"lm_head", "logits; exact unless lm_head=1"},
    {"qk", "scores of attention, q k^T"},
    {"av", "output of attention's softmax, p v"},
}};

constexpr std::array<AttentionEntry, 4> kAttentionModes = {{
    {"per_token", AttentionMode::kPerToken, "k and v are quantized once a token; causal and append-only"},
    {"per_head", AttentionMode::kPerHead, "one scale for a head's slice of a pass (published); a pass is a window"},
    {"per_row", AttentionMode::kPerRow, "one for each row, of v for each channel (published); a pass is a window"},
    {"exact", AttentionMode::kExact, "no stochastic computing in attention"},
}};

constexpr std::array<ScPreset, 2> kPresets = {{
    {"halved", HalvedScModelConfig, "the default: the best accuracy for its cycles, and causal"},
    {"published", PublishedScModelConfig, "what the published simulator ran until mid 2026"},
}};

bool IsAttentionProduct(ScOperatorId id) { return id == ScOperatorId::kQk || id == ScOperatorId::kAv; }

bool Takes(ScOperatorId id, const ScParameter& parameter) {
  switch (parameter.use) {
    case ScParameterUse::kEveryProduct: return true;
    case ScParameterUse::kLinears: return !IsAttentionProduct(id);
    case ScParameterUse::kDecoderLinears: return !IsAttentionProduct(id) && id != ScOperatorId::kLmHead;
  }
  STOCH_CHECK(false);
}

ScOperatorId OperatorAt(int index) { return static_cast<ScOperatorId>(index); }

void SetAttention(ScModelConfig& config, AttentionMode mode) {
  config.attention = mode;
  const ScGranularity scope = mode == AttentionMode::kPerHead ? ScGranularity::kPerHead : ScGranularity::kPerRow;
  config.at(ScOperatorId::kQk).granularity = scope;
  config.at(ScOperatorId::kAv).granularity = scope;
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

[[noreturn]] void Reject(const std::string& name, std::string_view value, const std::string& allowed) {
  throw InvalidInput("SC setting " + name + " = " + std::string(value) + ": allowed is " + allowed);
}

std::string JoinNames(const auto& entries) {
  std::string joined;
  for (const auto& entry : entries) joined += (joined.empty() ? "" : ", ") + std::string(entry.name);
  return joined;
}

AttentionMode ParseAttention(std::string_view value) {
  for (const AttentionEntry& entry : kAttentionModes) {
    if (entry.name == value) return entry.mode;
  }
  Reject("attention", '\'' + std::string(value) + '\'', JoinNames(kAttentionModes));
}

ScModelConfig ParsePreset(std::string_view value) {
  for (const ScPreset& preset : kPresets) {
    if (preset.name == value) return preset.make();
  }
  Reject("preset", '\'' + std::string(value) + '\'', JoinNames(kPresets));
}

void SetOperatorParameter(ScModelConfig& config, std::string_view op, std::string_view name, std::string_view value) {
  const auto found = std::find_if(kOperators.begin(), kOperators.end(), [op](const auto& e) { return e.name == op; });
  if (found == kOperators.end()) {
    throw InvalidInput("SC setting " + std::string(op) + '.' + std::string(name) + " names the unknown operator '" +
                       std::string(op) + "': known are " + JoinNames(kOperators));
  }
  const ScOperatorId id = OperatorAt(static_cast<int>(found - kOperators.begin()));
  const ScParameter& parameter = FindScParameter(name);
  if (!Takes(id, parameter)) {
    std::vector<ScOperatorEntry> takers;
    for (int i = 0; i < kNumScOperators; ++i) {
      if (Takes(OperatorAt(i), parameter)) takers.push_back(kOperators[static_cast<size_t>(i)]);
    }
    throw InvalidInput("SC setting " + std::string(op) + '.' + std::string(name) + " = " + std::string(value) + ": " +
                       std::string(name) + " is a parameter of " + JoinNames(takers) + " only");
  }
  parameter.set(config.at(id), parameter, value);
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
    SetAttention(config, ParseAttention(value));
  } else if (name == "lm_head") {
    if (value != "0" && value != "1") Reject("lm_head", '\'' + std::string(value) + '\'', "0, 1");
    config.sc_lm_head = value == "1";
  } else if (const size_t dot = name.find('.'); dot != std::string_view::npos) {
    SetOperatorParameter(config, name.substr(0, dot), name.substr(dot + 1), value);
  } else {
    const ScParameter& parameter = FindScParameter(name);
    for (int i = 0; i < kNumScOperators; ++i) {
      if (Takes(OperatorAt(i), parameter)) parameter.set(config.operators[static_cast<size_t>(i)], parameter, value);
    }
  }
}

// The settings that turn `preset` into `config`, each with a leading comma.
std::string Difference(const ScModelConfig& config, const ScModelConfig& preset) {
  std::string text;
  if (config.attention != preset.attention) text += ",attention=" + std::string(AttentionModeName(config.attention));
  if (config.sc_lm_head != preset.sc_lm_head) text += ",lm_head=" + std::to_string(config.sc_lm_head ? 1 : 0);
  for (const ScParameter& parameter : ScParameters()) {
    const std::string name(parameter.name);
    // One setting for the most common value unless it is the preset's, then the exceptions.
    std::array<std::string, kNumScOperators> values;
    std::map<std::string, int> votes;
    std::string common, preset_value;
    for (int i = 0; i < kNumScOperators; ++i) {
      const ScOperatorId id = OperatorAt(i);
      if (!Takes(id, parameter)) continue;
      preset_value = parameter.get(preset.at(id), parameter);
      const std::string& value = values[static_cast<size_t>(i)] = parameter.get(config.at(id), parameter);
      ++votes[value];
      if (votes[value] > votes[common]) common = value;
    }
    if (common != preset_value) text += ',' + name + '=' + common;
    for (int i = 0; i < kNumScOperators; ++i) {
      const std::string& value = values[static_cast<size_t>(i)];
      if (!Takes(OperatorAt(i), parameter) || value == common) continue;
      text += ',' + std::string(ScOperatorName(OperatorAt(i))) + '.' + name + '=' + value;
    }
  }
  return text;
}

}  // namespace

std::span<const ScPreset> ScPresets() { return kPresets; }
std::span<const AttentionEntry> AttentionModes() { return kAttentionModes; }
std::span<const ScOperatorEntry> ScOperators() { return kOperators; }

std::string_view ScOperatorName(ScOperatorId id) { return kOperators[static_cast<size_t>(id)].name; }

std::string_view AttentionModeName(AttentionMode mode) {
  for (const AttentionEntry& entry : kAttentionModes) {
    if (entry.mode == mode) return entry.name;
  }
  return "?";
}

ScModelConfig HalvedScModelConfig() { return MakePreset(true, 128, 64, AttentionMode::kPerToken); }

ScModelConfig PublishedScModelConfig() { return MakePreset(false, 256, 256, AttentionMode::kPerHead); }

ScModelConfig ParseScModelConfig(std::span<const std::string> settings, const ScModelConfig& base) {
  ScModelConfig config = base;
  for (const std::string& list : settings) {
    for (std::string_view rest = list;;) {
      const size_t comma = rest.find(',');
      Apply(config, rest.substr(0, comma));
      if (comma == std::string_view::npos) break;
      rest = rest.substr(comma + 1);
    }
  }
  Validate(config);
  return config;
}

void Validate(const ScModelConfig& config) {
  for (int i = 0; i < kNumScOperators; ++i) {
    const ScOperatorId id = OperatorAt(i);
    const ScConfig& op = config.at(id);
    if (id == ScOperatorId::kLmHead && !config.sc_lm_head) continue;
    if (IsAttentionProduct(id) && config.attention == AttentionMode::kExact) continue;
    const std::string name(ScOperatorName(id));
    try {
      Resolve(op);
    } catch (const InvalidInput& error) {
      throw InvalidInput(name + ": " + error.what());
    }
    if (IsAttentionProduct(id)) {
      const std::string mode = " with attention = " + std::string(AttentionModeName(config.attention));
      if (op.mode != ScMode::kBipolar) Reject(name + ".mode", "unipolar", "bipolar" + mode);
      if (op.gate == ScGate::kXnor) Reject(name + ".gate", "xnor", "enabled, and" + mode);
      if (op.chunk_d != 0) Reject(name + ".chunk_d", std::to_string(op.chunk_d), "0" + mode);
      if (op.group_a != 1) Reject(name + ".group_a", std::to_string(op.group_a), "1" + mode);
      if (op.group_b != 1) Reject(name + ".group_b", std::to_string(op.group_b), "1" + mode);
    } else if (op.granularity == ScGranularity::kPerHead) {
      Reject(name + ".granularity", "per_head", "per_tensor, per_row for a linear");
    } else if (id == ScOperatorId::kLmHead) {
      if (op.granularity != ScGranularity::kPerRow) Reject("lm_head.granularity", "per_tensor", "per_row");
      if (op.group_a != 1) Reject("lm_head.group_a", std::to_string(op.group_a), "1");
    }
  }
}

std::string Describe(const ScModelConfig& config) {
  std::string shortest;
  for (const ScPreset& preset : kPresets) {
    const std::string text = "preset=" + std::string(preset.name) + Difference(config, preset.make());
    if (shortest.empty() || text.size() < shortest.size()) shortest = text;
  }
  return shortest;
}

bool IsBatchInvariant(const ScModelConfig& config) {
  for (int i = 0; i < kNumScOperators; ++i) {
    const ScOperatorId id = OperatorAt(i);
    if (IsAttentionProduct(id) || id == ScOperatorId::kLmHead) continue;
    if (config.at(id).granularity != ScGranularity::kPerRow || config.at(id).group_a != 1) return false;
  }
  return true;
}

bool IsChunkInvariant(const ScModelConfig& config) {
  const bool append_only = config.attention == AttentionMode::kPerToken || config.attention == AttentionMode::kExact;
  return append_only && IsBatchInvariant(config);
}

}  // namespace stoch
