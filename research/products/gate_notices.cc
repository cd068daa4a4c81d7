// SPDX-License-Identifier: Apache-2.0
#include "research/products/gate_notices.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/sc/sc_parameters.h"
#include "models/sc_settings.h"
#include "research/products/correlation.h"

namespace stoch {
namespace {

// The version whose default source follows the gate.
constexpr const char* kFollowsSince = "0.2.0";

std::string TextOf(const ScConfig& config, std::string_view name) {
  const ScParameter& parameter = FindScParameter(name);
  return parameter.get(config, parameter);
}

std::string Hundredths(double value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.begin(), digits.end(), value, std::chars_format::fixed, 2);
  return {digits.begin(), end.ptr};
}

// The mean correlation of the two streams of a dimension, over a few masks.
double MeanScc(const ScConfig& resolved) {
  constexpr int kMasks = 4;
  const int masks = std::min(DistinctMasks(resolved), kMasks);
  const FreeStreams a(resolved, ScSide::kA, masks);
  const FreeStreams b(resolved, ScSide::kB, masks);
  return CorrelateSides(a, b, resolved.stoc_len, a.levels()).mean;
}

// The result of a gate for streams that are as alike, or as unlike, as they can be.
const char* ExtremeOf(ScGate gate, bool alike) {
  if (gate == ScGate::kXnor) return alike ? "1 - |a - b|" : "|a + b| - 1";
  return alike ? "min(a, b)" : "max(a + b - 1, 0)";
}

std::string CorrelationNotice(const ScConfig& resolved, double scc) {
  std::string text = "gate=" + TextOf(resolved, "gate") + " with source=" + TextOf(resolved, "source") +
                     ": streams are correlated (SCC " + Hundredths(scc) + "), so the gate computes nearly " +
                     ExtremeOf(resolved.gate, scc > 0) + ", not a product";
  ScConfig better = resolved;
  better.source = DefaultSource(resolved.gate);
  better.lfsr_restart = ScRestart::kProduct;
  const double best = MeanScc(better);
  if (better.source != resolved.source && std::abs(best) < std::abs(scc)) {
    text += ": source=" + TextOf(better, "source") + " has " + Hundredths(best);
  }
  return text;
}

// Operators that multiply streams in a free-running gate, each configuration once.
std::vector<ScConfig> FreeRunning(const ScModelConfig& sc) {
  std::vector<ScConfig> found;
  const auto add = [&](const ScOperatorConfigs& operators) {
    for (int i = 0; i < kNumScOperators; ++i) {
      const ScOperatorId id = OperatorAt(i);
      const ScConfig& op = operators[static_cast<size_t>(i)];
      const bool runs = id == ScOperatorId::kLmHead ? sc.sc_lm_head
                                                    : !IsAttentionProduct(id) || sc.attention != AttentionMode::kExact;
      if (!runs || op.arith != ScArith::kSc || !IsFreeRunning(op.gate)) continue;
      if (std::find(found.begin(), found.end(), op) == found.end()) found.push_back(op);
    }
  };
  add(sc.operators);
  for (const auto& [layer, operators] : sc.layers) add(operators);
  return found;
}

}  // namespace

std::vector<std::string> GateNotices(const ScModelConfig& sc) {
  constexpr double kCorrelated = 0.2;
  std::vector<std::string> notices;
  const auto add = [&](const std::string& text) {
    if (std::find(notices.begin(), notices.end(), text) == notices.end()) notices.push_back(text);
  };
  struct Pair {
    ScGate gate;
    ScSource source;
  };
  std::vector<Pair> told;  // of gate and source: other lengths and grids say the same
  for (const ScConfig& op : FreeRunning(sc)) {
    if (!op.source.given()) {
      add("gate=" + TextOf(op, "gate") + " without source: " + TextOf(op, "source") + " (before version " +
          kFollowsSince + ": sobol)");
    }
    const auto known = [&](const Pair& pair) { return pair.gate == op.gate && op.source == pair.source; };
    if (std::any_of(told.begin(), told.end(), known)) continue;
    const ScConfig resolved = Resolve(op);
    const double scc = MeanScc(resolved);
    if (std::abs(scc) <= kCorrelated) continue;
    told.push_back({op.gate, op.source});
    add(CorrelationNotice(resolved, scc));
  }
  return notices;
}

}  // namespace stoch
