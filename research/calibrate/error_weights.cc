// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/error_weights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/kl_divergence.h"
#include "engine/perplexity.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/quote.h"
#include "research/calibrate/length_samples.h"

namespace stoch {
namespace {

bool IsAttention(ScOperatorId id) { return id == ScOperatorId::kQk || id == ScOperatorId::kAv; }

// `sc` in the products that `in_sc` chooses, at `length` cycles unless that is 0. The others: exact, of attention int8,
// or all of it exact where no product of attention is asked for.
template <typename Chooses>
ScModelConfig Only(const ScModelConfig& sc, int64_t layers, bool with_attention, int length, const Chooses& in_sc) {
  ScModelConfig one = sc;
  if (!with_attention) one.attention = AttentionMode::kExact;
  for (int layer = 0; layer < layers; ++layer) {
    ScOperatorConfigs operators;
    for (int i = 0; i < kNumScOperators; ++i) {
      const auto id = static_cast<ScOperatorId>(i);
      ScConfig& op = operators[static_cast<size_t>(i)];
      op = sc.at(layer, id);
      if (id == ScOperatorId::kLmHead) continue;
      if (!in_sc(layer, id)) {
        op.arith = IsAttention(id) ? ScArith::kInt8 : ScArith::kFp;
      } else if (length > 0) {
        op.stoc_len = length;
      }
    }
    one.layers[layer] = operators;
  }
  one.sc_lm_head = false;
  return one;
}

// What `loss` says of the model with one bucket in SC more than of the model without, at least 0.
std::map<std::string, double> OfEveryBucket(const LengthCalibration& calibration, int64_t layers, int length,
                                            const std::function<double(const EngineOptions&)>& loss) {
  const auto in_sc = [&](bool with_attention, const auto& chooses) {
    EngineOptions options;
    options.sc = Only(calibration.sc, layers, with_attention, length, chooses);
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

// The windows of the calibration through the model in another configuration.
PerplexityResult Evaluate(const LengthCalibration& calibration, const std::shared_ptr<Backend>& backend,
                          const std::string& model, std::span<const int32_t> ids, const EngineOptions& base,
                          const decltype(PerplexityOptions::on_logits)& on_logits) {
  EngineOptions options = base;
  options.context = calibration.windows.ctx;
  options.max_pass_rows = std::max(options.max_pass_rows, calibration.windows.ctx);
  const auto engine = Engine::Open(backend, OpenModelFiles(model), options);
  PerplexityOptions evaluation;
  evaluation.ctx = calibration.windows.ctx;
  evaluation.max_windows = calibration.windows.count;
  evaluation.on_logits = on_logits;
  return EvaluatePerplexity(*engine, ids, evaluation);
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
  return OfEveryBucket(calibration, config.num_hidden_layers, 0, [&](const EngineOptions& options) {
    return Evaluate(calibration, backend, model, ids, options, {}).mean_nll;
  });
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
  // Removes the file on every path.
  struct Removed {
    const std::string& path;
    ~Removed() {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
  };
  const Removed removed{base};
  {
    KlBaseWriter writer(base, config.vocab_size);
    EngineOptions exact;
    exact.precision = Precision::kFp32;
    Evaluate(calibration, backend, model, ids, exact, [&](const TensorView& logits, std::span<const int32_t> targets) {
      writer.Add(*backend, logits, targets);
    });
    writer.Close();
  }
  return OfEveryBucket(calibration, config.num_hidden_layers, length, [&](const EngineOptions& options) {
    if (options.precision == Precision::kFp32) return 0.0;
    KlBaseReader reader(base, config.vocab_size);
    KlComparison comparison(*backend, config.vocab_size);
    Evaluate(
        calibration, backend, model, ids, options,
        [&](const TensorView& logits, std::span<const int32_t> targets) { comparison.Add(reader, logits, targets); });
    return comparison.Summary().kld.mean;
  });
}

}  // namespace stoch
