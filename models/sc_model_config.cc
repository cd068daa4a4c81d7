#include "models/sc_model_config.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace stoch {
namespace {

constexpr std::array<std::string_view, kNumScOperators> kOperatorNames = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head", "qk", "av"};

constexpr std::array<std::pair<std::string_view, AttentionMode>, 4> kAttentionModes = {
    {{"per_token", AttentionMode::kPerToken},
     {"per_head", AttentionMode::kPerHead},
     {"per_row", AttentionMode::kPerRow},
     {"exact", AttentionMode::kExact}}};

constexpr std::string_view kPresets = "halved, published";

bool IsAttentionProduct(ScOperatorId id) { return id == ScOperatorId::kQk || id == ScOperatorId::kAv; }

// Scopes of activations belong to decoder linears, chunks and the unipolar mode to any linear, the rest to all.
bool Takes(ScOperatorId id, std::string_view parameter) {
  if (parameter == "granularity" || parameter == "group_a") {
    return !IsAttentionProduct(id) && id != ScOperatorId::kLmHead;
  }
  if (parameter == "chunk_d" || parameter == "mode" || parameter == "group_b") return !IsAttentionProduct(id);
  return true;
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

std::string JoinNames(const auto& names) {
  std::string joined;
  for (const auto& name : names) joined += (joined.empty() ? "" : ", ") + std::string(name);
  return joined;
}

AttentionMode ParseAttention(std::string_view value) {
  for (const auto& [name, mode] : kAttentionModes) {
    if (name == value) return mode;
  }
  Reject("attention", '\'' + std::string(value) + '\'', "per_token, per_head, per_row, exact");
}

void SetOperatorParameter(ScModelConfig& config, std::string_view op, std::string_view name, std::string_view value) {
  const auto found = std::find(kOperatorNames.begin(), kOperatorNames.end(), op);
  if (found == kOperatorNames.end()) {
    throw InvalidInput("SC setting " + std::string(op) + '.' + std::string(name) + " names the unknown operator '" +
                       std::string(op) + "': known are " + JoinNames(kOperatorNames));
  }
  const ScOperatorId id = OperatorAt(static_cast<int>(found - kOperatorNames.begin()));
  if (!Takes(id, name)) {
    std::vector<std::string_view> takers;
    for (int i = 0; i < kNumScOperators; ++i) {
      if (Takes(OperatorAt(i), name)) takers.push_back(kOperatorNames[static_cast<size_t>(i)]);
    }
    throw InvalidInput("SC setting " + std::string(op) + '.' + std::string(name) + " = " + std::string(value) + ": " +
                       std::string(name) + " is a parameter of " + JoinNames(takers) + " only");
  }
  SetScParameter(config.at(id), name, value);
}

void Apply(ScModelConfig& config, std::string_view setting) {
  const size_t equals = setting.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw InvalidInput("SC setting '" + std::string(setting) + "' is not of the form NAME=VALUE");
  }
  const std::string_view name = setting.substr(0, equals);
  const std::string_view value = setting.substr(equals + 1);
  if (name == "preset") {
    if (value != "halved" && value != "published") {
      Reject("preset", '\'' + std::string(value) + '\'', std::string(kPresets));
    }
    config = value == "halved" ? HalvedScModelConfig() : PublishedScModelConfig();
  } else if (name == "attention") {
    SetAttention(config, ParseAttention(value));
  } else if (name == "lm_head") {
    if (value != "0" && value != "1") Reject("lm_head", '\'' + std::string(value) + '\'', "0, 1");
    config.sc_lm_head = value == "1";
  } else if (const size_t dot = name.find('.'); dot != std::string_view::npos) {
    SetOperatorParameter(config, name.substr(0, dot), name.substr(dot + 1), value);
  } else {
    for (int i = 0; i < kNumScOperators; ++i) {
      if (Takes(OperatorAt(i), name)) SetScParameter(config.operators[static_cast<size_t>(i)], name, value);
    }
  }
}

// The parameters of one operator that differ from ScConfig{}, by name.
std::map<std::string, std::string> Parameters(const ScConfig& config) {
  std::map<std::string, std::string> parameters;
  const std::string text = Describe(config);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t equals = text.find('=', begin);
    parameters[text.substr(begin, equals - begin)] = text.substr(equals + 1, end - equals - 1);
    begin = end + 1;
  }
  return parameters;
}

// The text of a default that a preset replaces; parameters no preset touches need none.
std::string DefaultText(std::string_view name) {
  if (name == "scramble_masks") return std::to_string(ScConfig{}.scramble_masks);
  return "0";
}

// The settings that turn `preset` into `config`, each with a leading comma.
std::string Difference(const ScModelConfig& config, const ScModelConfig& preset) {
  std::string text;
  if (config.attention != preset.attention) text += ",attention=" + std::string(AttentionModeName(config.attention));
  if (config.sc_lm_head != preset.sc_lm_head) text += ",lm_head=" + std::to_string(config.sc_lm_head ? 1 : 0);

  std::array<std::map<std::string, std::string>, kNumScOperators> ours, theirs;
  std::vector<std::string> names;
  for (size_t i = 0; i < kNumScOperators; ++i) {
    ours[i] = Parameters(config.operators[i]);
    theirs[i] = Parameters(preset.operators[i]);
    for (const auto* side : {&ours[i], &theirs[i]}) {
      for (const auto& [name, value] : *side) {
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
  }
  for (const std::string& name : names) {
    const auto value_of = [&name](const std::map<std::string, std::string>& parameters) {
      const auto found = parameters.find(name);
      return found == parameters.end() ? DefaultText(name) : found->second;
    };
    // One setting for the most common value where that is not the preset's, then the exceptions.
    std::map<std::string, int> votes;
    std::string common, preset_value;
    for (size_t i = 0; i < kNumScOperators; ++i) {
      if (!Takes(OperatorAt(static_cast<int>(i)), name)) continue;
      preset_value = value_of(theirs[i]);
      const std::string value = value_of(ours[i]);
      ++votes[value];
      if (common.empty() || votes[value] > votes[common]) common = value;
    }
    if (common != preset_value) text += ',' + name + '=' + common;
    for (size_t i = 0; i < kNumScOperators; ++i) {
      if (!Takes(OperatorAt(static_cast<int>(i)), name) || value_of(ours[i]) == common) continue;
      text += ',' + std::string(kOperatorNames[i]) + '.' + name + '=' + value_of(ours[i]);
    }
  }
  return text;
}

}  // namespace

std::string_view ScOperatorName(ScOperatorId id) { return kOperatorNames[static_cast<size_t>(id)]; }

std::string_view AttentionModeName(AttentionMode mode) {
  for (const auto& [name, entry] : kAttentionModes) {
    if (entry == mode) return name;
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
  const std::string halved = "preset=halved" + Difference(config, HalvedScModelConfig());
  const std::string published = "preset=published" + Difference(config, PublishedScModelConfig());
  return published.size() < halved.size() ? published : halved;
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
