// SPDX-License-Identifier: Apache-2.0
// What a configuration of a model may not be, and which of its settings couple rows or passes.
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/sc/hardware/accumulator.h"
#include "kernels/sc/sc_parameters.h"
#include "models/sc_model_config.h"
#include "models/sc_settings.h"

namespace stoch {
namespace {

// Refuses what a product of attention may not have in the model's mode. Of dilated rows, av has no scales and no
// registers by position: where positions are skipped it is not defined which ones share a scale or a group, and what a
// register does at the others. Faults of keys belong to stored codes, which per_head and per_row do not have.
void ValidateMode(const ScModelConfig& config, ScOperatorId id, const ScConfig& op, const std::string& name) {
  const bool is_av = id == ScOperatorId::kAv;
  const bool is_window = config.attention == AttentionMode::kPerHead || config.attention == AttentionMode::kPerRow;
  if (is_av && op.arith == ScArith::kMxInt8) {
    Reject(name + ".arith", "mxint8", "sc, int2..int8, fp8_e4m3 (blocks along positions would change as tokens come)");
  }
  if (config.dilated.enabled && is_av && op.arith != ScArith::kSc && op.arith != ScArith::kFp) {
    const std::string value = IntBits(op.arith) > 0 ? "int" + std::to_string(IntBits(op.arith)) : "fp8_e4m3";
    Reject(name + ".arith", value, "sc with attention = dilated (a scale belongs to 128 positions in a row)");
  }
  const bool refuses_hardware = config.dilated.enabled && is_av && HasHardware(op);
  if (!refuses_hardware && !(is_window && HasFaults(op))) return;
  const ScConfig ideal;
  for (const ScParameter& parameter : ScParameters()) {
    const std::string value = parameter.get(op, parameter);
    if (!IsHardware(parameter) || value == parameter.get(ideal, parameter)) continue;
    if (!refuses_hardware && !parameter.name.starts_with("fault")) continue;
    Reject(name + '.' + std::string(parameter.name), value,
           parameter.get(ideal, parameter) + " with attention = " + std::string(AttentionName(config)) +
               (refuses_hardware ? " (at positions that a row skips it is not defined)"
                                 : " (a pass quantizes every key and value again)"));
  }
}

void ValidateOperator(const ScModelConfig& config, ScOperatorId id, const ScConfig& op, const std::string& name) {
  if (IsAttentionProduct(id) && op.arith == ScArith::kFp) RejectExactProduct(name);
  try {
    Resolve(op);
  } catch (const InvalidInput& error) {
    throw InvalidInput(name + ": " + error.what());
  }
  if (IsAttentionProduct(id)) ValidateMode(config, id, op, name);
  if (op.arith != ScArith::kSc) return;  // no streams: scopes of their own
  if (IsAttentionProduct(id)) {
    const std::string mode = " with attention = " + std::string(AttentionName(config));
    if (op.mode != ScMode::kBipolar) Reject(name + ".mode", "unipolar", "bipolar" + mode);
    if (op.gate == ScGate::kXnor) {
      Reject(name + ".gate", "'xnor'", "'enabled' or 'and'" + mode + ": add qk.gate=enabled,av.gate=enabled");
    }
    if (op.gate == ScGate::kTable && Resolve(op).mode == ScMode::kUnipolar) {
      Reject(name + ".table_code", "unsigned", "signed, sign_magnitude" + mode);
    }
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

void ValidateDilated(const ScModelConfig& config) {
  const ScDilatedConfig& dilated = config.dilated;
  for (const DilatedEntry& entry : DilatedLists()) {
    const std::vector<int64_t>& list = dilated.*entry.list;
    const std::string name(entry.name);
    if (!dilated.enabled && !list.empty()) {
      Reject(name, TokenListText(list), "nothing with attention = " + std::string(AttentionName(config)));
    }
    if (dilated.enabled && list.empty()) Reject(name, "''", "a list with attention = dilated, as 2048:8192");
  }
  if (dilated.segments.size() != dilated.dilation.size()) {
    Reject("dilation", TokenListText(dilated.dilation),
           "as many numbers as segments = " + TokenListText(dilated.segments));
  }
}

// Of one linear: the setting that couples its rows, or "".
std::string WhyRowsCouple(ScOperatorId id, const ScConfig& op) {
  if (IsAttentionProduct(id) || id == ScOperatorId::kLmHead || op.arith != ScArith::kSc) return "";
  if (op.granularity != ScGranularity::kPerRow) return "granularity=per_tensor of " + std::string(ScOperatorName(id));
  if (op.group_a != 1) return "group_a=" + std::to_string(op.group_a) + " of " + std::string(ScOperatorName(id));
  return "";
}

// Of all linears.
std::string WhyLinearsCouple(const ScModelConfig& config) {
  if (DependsOnCall(config)) return "stream lengths that depend on a call (normalise=call, or fractions)";
  const auto of = [](const ScOperatorConfigs& operators) {
    std::string why;
    for (int i = 0; i < kNumScOperators && why.empty(); ++i) {
      why = WhyRowsCouple(OperatorAt(i), operators[static_cast<size_t>(i)]);
    }
    return why;
  };
  std::string why = of(config.operators);
  for (auto layer = config.layers.begin(); layer != config.layers.end() && why.empty(); ++layer) {
    why = of(layer->second);
    if (!why.empty()) why += " in layer " + std::to_string(layer->first);
  }
  return why;
}

}  // namespace

void Validate(const ScModelConfig& config) {
  ValidateDilated(config);
  for (int i = 0; i < kNumScOperators; ++i) {
    const ScOperatorId id = OperatorAt(i);
    if (id == ScOperatorId::kLmHead && !config.sc_lm_head) continue;
    if (IsAttentionProduct(id) && config.attention == AttentionMode::kExact) continue;
    const std::string name(ScOperatorName(id));
    ValidateOperator(config, id, config.at(id), name);
    const ScConfig* checked = &config.at(id);
    for (const auto& [layer, operators] : config.layers) {
      const ScConfig& op = operators[static_cast<size_t>(i)];
      if (id == ScOperatorId::kLmHead || op == *checked) continue;
      ValidateOperator(config, id, op, std::to_string(layer) + '.' + name);
      checked = &op;
    }
  }
}

namespace {

// Calls `visit` with every operator that runs, of all layers and of those with settings of their own.
template <typename Visit>
void ForOperators(const ScModelConfig& config, const Visit& visit) {
  const auto all = [&](const ScOperatorConfigs& operators) {
    for (int i = 0; i < kNumScOperators; ++i) {
      const ScOperatorId id = OperatorAt(i);
      if (id == ScOperatorId::kLmHead && !config.sc_lm_head) continue;
      if (IsAttentionProduct(id) && config.attention == AttentionMode::kExact) continue;
      visit(id, operators[static_cast<size_t>(i)]);
    }
  };
  all(config.operators);
  for (const auto& [layer, operators] : config.layers) all(operators);
}

}  // namespace

bool DrawsFaultsByRow(const ScModelConfig& config) {
  bool draws = false;
  ForOperators(config, [&](ScOperatorId, const ScConfig& op) { draws |= DrawsFaultsByRow(op); });
  return draws;
}

std::string WhyNotDealt(const ScModelConfig& config) {
  std::string why;
  ForOperators(config, [&](ScOperatorId id, const ScConfig& op) {
    if (why.empty() && IsAttentionProduct(id) && HasFaults(op)) why = "faults of " + std::string(ScOperatorName(id));
  });
  return why;
}

bool DependsOnCall(const ScModelConfig& config) {
  if (config.files.mp == nullptr) return false;
  return config.files.normalise == ScNormalise::kCall || !config.files.mp->level_fractions.empty();
}

bool IsBatchInvariant(const ScModelConfig& config) { return WhyLinearsCouple(config).empty(); }

std::string WhyPassesCouple(const ScModelConfig& config) {
  const bool append_only = config.attention == AttentionMode::kPerToken || config.attention == AttentionMode::kExact;
  if (!append_only) return "attention=" + std::string(AttentionName(config));
  return WhyLinearsCouple(config);
}

bool IsChunkInvariant(const ScModelConfig& config) { return WhyPassesCouple(config).empty(); }

}  // namespace stoch
