// SPDX-License-Identifier: Apache-2.0
#include "engine/research/calibrate/error_weights.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/perplexity.h"
#include "engine/research/calibrate/length_samples.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/quote.h"

namespace stoch {
namespace {

bool IsAttention(ScOperatorId id) { return id == ScOperatorId::kQk || id == ScOperatorId::kAv; }

// `sc` in the products that `in_sc` chooses. The others: exact, of attention int8, or all of it exact where no product
// of attention is asked for.
template <typename Chooses>
ScModelConfig Only(const ScModelConfig& sc, int64_t layers, bool with_attention, const Chooses& in_sc) {
  ScModelConfig one = sc;
  if (!with_attention) one.attention = AttentionMode::kExact;
  for (int layer = 0; layer < layers; ++layer) {
    ScOperatorConfigs operators;
    for (int i = 0; i < kNumScOperators; ++i) {
      const auto id = static_cast<ScOperatorId>(i);
      operators[static_cast<size_t>(i)] = sc.at(layer, id);
      if (id == ScOperatorId::kLmHead || in_sc(layer, id)) continue;
      operators[static_cast<size_t>(i)].arith = IsAttention(id) ? ScArith::kInt8 : ScArith::kFp;
    }
    one.layers[layer] = operators;
  }
  one.sc_lm_head = false;
  return one;
}

}  // namespace

std::map<std::string, double> ParseErrorWeights(const std::string& text, const std::string& name,
                                                int64_t layer_buckets) {
  const nlohmann::json root = ParseBoundedJson(text, name);
  if (!root.is_object()) throw InvalidInput(name + ": allowed is an object {operator or \"op:t0:lJ\": number}");
  std::vector<std::string> known;
  for (int i = 0; i < kNumScOperators; ++i) {
    const auto id = static_cast<ScOperatorId>(i);
    if (id == ScOperatorId::kLmHead) continue;
    const std::string op(ScOperatorName(id));
    known.push_back(op);
    for (int64_t bucket = 0; bucket < layer_buckets; ++bucket) known.push_back(op + ":t0:l" + std::to_string(bucket));
  }
  std::map<std::string, double> weights;
  for (const auto& [key, value] : root.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw InvalidInput(name + ": key " + Quoted(key) + ": allowed is an operator, or op:t0:lJ with J in 0.." +
                         std::to_string(layer_buckets - 1));
    }
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
      throw InvalidInput(name + ": " + key + ": allowed is a finite number, 0 or above");
    }
    weights[key] = value.get<double>();
  }
  return weights;
}

std::map<std::string, double> MeasureErrorWeights(const LengthCalibration& calibration,
                                                  const std::shared_ptr<Backend>& backend, const std::string& model,
                                                  std::span<const int32_t> ids) {
  const DecoderConfig config = OpenModelFiles(model).config;
  CheckLengthCalibration(calibration, config);
  CheckWindows(calibration.windows, ids.size());
  const auto nll = [&](const EngineOptions& base) {
    EngineOptions options = base;
    options.context = calibration.windows.ctx;
    options.max_pass_rows = std::max(options.max_pass_rows, calibration.windows.ctx);
    const auto engine = Engine::Open(backend, OpenModelFiles(model), options);
    PerplexityOptions evaluation;
    evaluation.ctx = calibration.windows.ctx;
    evaluation.max_windows = calibration.windows.count;
    return EvaluatePerplexity(*engine, ids, evaluation).mean_nll;
  };
  const int64_t layers = config.num_hidden_layers;
  const auto in_sc = [&](bool with_attention, const auto& chooses) {
    EngineOptions options;
    options.sc = Only(calibration.sc, layers, with_attention, chooses);
    return nll(options);
  };
  EngineOptions exact;
  exact.precision = Precision::kFp32;
  const double exact_nll = nll(exact);
  const bool has_attention = calibration.sc.attention != AttentionMode::kExact;
  const double integer_nll = has_attention ? in_sc(true, [](int, ScOperatorId) { return false; }) : exact_nll;

  std::map<std::string, double> weights;
  for (int i = 0; i < kNumScOperators; ++i) {
    const auto id = static_cast<ScOperatorId>(i);
    if (id == ScOperatorId::kLmHead || (IsAttention(id) && !has_attention)) continue;
    for (int64_t bucket = 0; bucket < calibration.layer_buckets; ++bucket) {
      bool any = false;
      const auto chooses = [&](int layer, ScOperatorId which) {
        return which == id && LayerBucket(layer, layers, calibration.layer_buckets) == bucket &&
               InStreams(calibration.sc.at(layer, id));
      };
      for (int layer = 0; layer < layers; ++layer) any = any || chooses(layer, id);
      if (!any) continue;
      const double base = IsAttention(id) ? integer_nll : exact_nll;
      const std::string key = std::string(ScOperatorName(id)) + ":t0:l" + std::to_string(bucket);
      weights[key] = std::max(0.0, in_sc(IsAttention(id), chooses) - base);
    }
  }
  return weights;
}

}  // namespace stoch
