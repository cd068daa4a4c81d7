// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/error_weights.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/quote.h"
#include "research/calibrate/length_samples.h"
#include "research/calibrate/single_products.h"

namespace stoch {
namespace {

bool IsAttention(ScOperatorId id) { return id == ScOperatorId::kQk || id == ScOperatorId::kAv; }

// What `loss` says of the model with one bucket in SC more than of the model without, at least 0.
std::map<std::string, double> OfEveryBucket(const LengthCalibration& calibration, int64_t layers, int length,
                                            const std::function<double(const EngineOptions&)>& loss) {
  const auto in_sc = [&](bool with_attention, const auto& chooses) {
    EngineOptions options;
    options.sc = OnlyIn(calibration.sc, layers, with_attention, [&](int layer, ScOperatorId id, ScConfig* op) {
      if (!chooses(layer, id)) return false;
      if (length > 0) op->stoc_len = length;
      return true;
    });
    return loss(options);
  };
  EngineOptions exact;
  exact.precision = Precision::kFp32;
  const double of_exact = loss(exact);
  const bool has_attention = calibration.sc.attention != AttentionMode::kExact;
  const double of_integers = has_attention ? in_sc(true, [](int, ScOperatorId) { return false; }) : of_exact;

  std::map<std::string, double> result;
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
      const double base = IsAttention(id) ? of_integers : of_exact;
      const std::string key = std::string(ScOperatorName(id)) + ":t0:l" + std::to_string(bucket);
      result[key] = std::max(0.0, in_sc(IsAttention(id), chooses) - base);
    }
  }
  return result;
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
  const EvaluatedText text{calibration.windows, backend, model, ids};
  return OfEveryBucket(calibration, config.num_hidden_layers, 0,
                       [&](const EngineOptions& options) { return EvaluateWindows(text, options, {}).mean_nll; });
}

int DivergenceLength(const LengthCalibration& calibration) {
  const double average = calibration.budget * (calibration.ref > 0 ? calibration.ref : calibration.levels.front());
  int nearest = 0;
  for (const int level : calibration.levels) {  // descending
    if (level > 0 && (nearest == 0 || std::abs(level - average) <= std::abs(nearest - average))) nearest = level;
  }
  return nearest;
}

std::map<std::string, double> MeasureDivergences(const LengthCalibration& calibration, int length,
                                                 const std::string& base, const std::shared_ptr<Backend>& backend,
                                                 const std::string& model, std::span<const int32_t> ids) {
  const DecoderConfig config = OpenModelFiles(model).config;
  CheckLengthCalibration(calibration, config);
  CheckWindows(calibration.windows, ids.size());
  const EvaluatedText text{calibration.windows, backend, model, ids};
  const ExactDivergence divergence(text, base);
  return OfEveryBucket(calibration, config.num_hidden_layers, length, [&](const EngineOptions& options) {
    return options.precision == Precision::kFp32 ? 0.0 : divergence.Of(options);
  });
}

}  // namespace stoch
