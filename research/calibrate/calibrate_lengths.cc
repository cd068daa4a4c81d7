// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/calibrate_lengths.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/config/decoder_tensors.h"
#include "models/sc_plan.h"
#include "research/calibrate/host_products.h"
#include "research/calibrate/length_fit.h"
#include "research/calibrate/length_samples.h"

namespace stoch {
namespace {

void Reject(const std::string& option, const std::string& allowed) {
  throw InvalidInput(option + ": allowed is " + allowed);
}

double WeightOf(const LengthCalibration& calibration, const LengthBucket& bucket) {
  for (const std::string& key : {bucket.key(), bucket.op}) {
    if (const auto found = calibration.weights.find(key); found != calibration.weights.end()) return found->second;
  }
  return 1.0;
}

// Errors of `bucket` in units of its divergence.
void ScaleToDivergence(const LengthCalibration& calibration, std::span<const int> levels, LengthBucket* bucket) {
  const auto at =
      static_cast<size_t>(std::find(levels.begin(), levels.end(), calibration.divergence_length) - levels.begin());
  STOCH_CHECK(at < levels.size());
  LengthSamples& samples = bucket->samples;
  if (!bucket->by_chunk) {  // those of chunks are squares
    for (double& error : samples.errors) error *= error;
  }
  double there = 0;
  for (size_t i = 0; i < samples.metrics.size(); ++i) {
    there += samples.stands_for[i] * samples.errors[i * levels.size() + at];
  }
  const auto found = calibration.divergences.find(bucket->key());
  bucket->weight = there == 0 || found == calibration.divergences.end() ? 0.0 : found->second / there;
}

// Chooses the metric of every operator whose buckets have candidates.
std::map<std::string, MpDispatch> ChooseMetrics(size_t levels, std::vector<LengthBucket>* buckets,
                                                CalibratedLengths* result) {
  constexpr const char* kNames[] = {"amax", "l2", "crest"};
  std::map<std::string, std::vector<LengthBucket*>> by_op;
  for (LengthBucket& bucket : *buckets) {
    if (!bucket.samples.candidates[0].empty()) by_op[bucket.op].push_back(&bucket);
  }
  std::map<std::string, MpDispatch> chosen;
  for (const auto& [op, own] : by_op) {
    std::vector<double> gains;
    for (const LengthBucket* bucket : own) {
      const std::vector<double>& errors = bucket->samples.errors;
      for (size_t at = 0; at < errors.size(); at += levels) gains.push_back(errors[at] - errors[at + levels - 1]);
    }
    double best = -2;  // below every correlation, so that the first is taken where none has one
    size_t metric = 0;
    for (size_t i = 0; i < std::size(kNames); ++i) {
      for (const int sign : {1, -1}) {
        std::vector<double> metrics;
        for (const LengthBucket* bucket : own) {
          for (const float value : bucket->samples.candidates[i]) metrics.push_back(sign * static_cast<double>(value));
        }
        const std::optional<double> rho = RankCorrelation(metrics, gains);
        result->candidates[op].push_back(rho);
        if (!rho || *rho <= best) continue;
        best = *rho;
        metric = i;
        chosen[op] = {kNames[i], sign};
      }
    }
    const auto sign = static_cast<float>(chosen[op].sign);
    for (LengthBucket* bucket : own) {
      bucket->samples.metrics = bucket->samples.candidates[metric];
      for (float& value : bucket->samples.metrics) value = sign * value;
    }
  }
  return chosen;
}

// Operands of all operators in streams, by bucket.
struct SampledOperators {
  std::map<std::string, LengthBucket> buckets;
  std::optional<ScConfig> first;  // of an operator
  std::map<std::string, std::vector<int32_t>> protected_channels;

  // Errors: InvalidInput where sc_prec or halve differ from those of other operators.
  LengthBucket& At(const LengthCalibration& calibration, const ScConfig& config, int layer, int64_t layers,
                   ScOperatorId id, bool by_chunk) {
    if (!first) first = config;
    if (config.sc_prec != first->sc_prec || config.halve != first->halve) {
      throw InvalidInput("SC settings sc_prec and halve: a table of lengths has one of each, " +
                         std::string(ScOperatorName(id)) + " of layer " + std::to_string(layer) + " another");
    }
    const LengthBucket bucket{
        std::string(ScOperatorName(id)), LayerBucket(layer, layers, calibration.layer_buckets), by_chunk, 1, {}};
    return buckets.try_emplace(bucket.key(), bucket).first->second;
  }
};

SampledOperators SampleOperators(const LengthCalibration& calibration, const ModelFiles& files,
                                 const std::vector<int>& levels, const std::shared_ptr<Backend>& backend,
                                 const std::string& model, std::span<const int32_t> ids) {
  LengthCollector collector(calibration, files.config, levels);
  ObserveExactWindows(calibration.windows, backend, model, ids, &collector);
  SampledOperators sampled;
  ScPlan plan(calibration.sc, files.config);
  HostProducts products(*backend);
  const int64_t layers = files.config.num_hidden_layers;
  for (int layer = 0; layer < layers; ++layer) {
    for (const BlockLinear& linear : files.config.architecture->linears) {
      const ScOperatorId id = OperatorOf(linear.id);
      const ScConfig config = plan.Config(layer, id);
      if (!InStreams(config)) continue;
      const std::string op(ScOperatorName(id));
      const WeightSource w = files.weights->Matrix(LayerTensorName(layer, linear.tensor),
                                                   SizeOf(files.config, linear.out), SizeOf(files.config, linear.in));
      const SampledInput& input = collector.At(layer, linear.group);
      std::vector<int32_t> own;
      if (calibration.protect > 0) {
        own = LargestChannels(input.largest, ReadWeight(w, calibration.windows.threads), calibration.protect, op);
      }
      const std::vector<float>* smooth = nullptr;
      if (const auto& scales = calibration.sc.files.smooth; scales != nullptr) {
        const auto found = scales->scales.find(std::to_string(layer) + '.' + op);
        if (found != scales->scales.end()) smooth = &found->second;
      }
      sampled.At(calibration, Resolve(config), layer, layers, id, calibration.chunks)
          .samples.Append(SampleLinear(calibration, levels, {input, w, config, smooth, own}, &products));
      if (!own.empty()) sampled.protected_channels[op + ":b" + std::to_string(layer)] = own;
    }
  }
  for (const auto& [at, samples] : collector.attention()) {
    const ScConfig config = Resolve(plan.Config(at.second, at.first));
    sampled.At(calibration, config, at.second, layers, at.first, false).samples.Append(samples);
  }
  if (sampled.buckets.empty()) throw InvalidInput("no operator runs in streams: there are no lengths to calibrate");
  return sampled;
}

CalibratedLengths FitTable(const LengthCalibration& calibration, const SampledOperators& sampled,
                           const std::vector<int>& levels) {
  CalibratedLengths result;
  std::vector<LengthBucket> list;
  for (const auto& [key, bucket] : sampled.buckets) {
    list.push_back(bucket);
    list.back().weight = WeightOf(calibration, bucket);
    if (!calibration.divergences.empty()) ScaleToDivergence(calibration, levels, &list.back());
  }
  const std::map<std::string, MpDispatch> chosen = ChooseMetrics(levels.size(), &list, &result);
  const int ref = calibration.ref > 0 ? calibration.ref : levels.back();
  const FittedLengths fitted = FitLengths(list, levels, calibration.budget, ref);
  MpFile& table = result.table;
  table.levels = calibration.levels;
  table.sc_prec = sampled.first->sc_prec;
  table.halve = sampled.first->halve;
  table.layer_buckets = calibration.layer_buckets;
  table.chunk_layer_buckets = calibration.layer_buckets;
  table.protected_channels = sampled.protected_channels;
  for (size_t i = 0; i < list.size(); ++i) {
    (list[i].by_chunk ? table.chunk_buckets : table.buckets)[list[i].key()] = fitted.buckets[i];
    const auto own = chosen.find(list[i].op);
    const bool by_amax = list[i].by_chunk && calibration.metric == kAutoMetric;  // as chunks always are
    table.dispatch[list[i].op] = own != chosen.end() ? own->second
                                 : by_amax           ? MpDispatch{}
                                                     : MpDispatch{calibration.metric, calibration.sign};
  }
  table.protected_len = table.protected_channels.empty() ? 0 : levels.back();
  result.average = fitted.average;
  result.mac_average = fitted.mac_average;
  result.fidelity = fitted.fidelity;
  return result;
}

}  // namespace

void CheckLengthCalibration(const LengthCalibration& calibration, const DecoderConfig& config) {
  std::string list;
  for (const int level : calibration.levels) list += (list.empty() ? "" : ",") + std::to_string(level);
  const auto& levels = calibration.levels;
  constexpr size_t kMaxLevels = 32;
  if (levels.size() < 2 || levels.size() > kMaxLevels || levels.back() < 0 ||
      !std::is_sorted(levels.begin(), levels.end(), std::greater_equal<>())) {
    Reject("--levels " + list, "2 to 32 lengths that fall");
  }
  if (!(calibration.budget > 0) || !std::isfinite(calibration.budget)) {
    Reject("--budget " + std::to_string(calibration.budget), "a finite number above 0");
  }
  constexpr int kMaxRef = 65536;
  if (calibration.ref < 0 || calibration.ref > kMaxRef) Reject("--ref " + std::to_string(calibration.ref), "1..65536");
  CheckBudget(calibration.budget, levels.back(), calibration.ref > 0 ? calibration.ref : levels.front());
  constexpr int64_t kMaxBuckets = 4096;
  if (calibration.layer_buckets < 1 || calibration.layer_buckets > kMaxBuckets) {
    Reject("--layer-buckets " + std::to_string(calibration.layer_buckets), "1..4096");
  }
  const std::string& metric = calibration.metric;
  if (metric != "amax" && metric != "l2" && metric != "crest" && metric != kAutoMetric) {
    Reject("--metric " + metric, "amax, l2, crest, auto");
  }
  if (metric == kAutoMetric && calibration.sign != 1) Reject("--sign -1", "1 with --metric auto, which chooses it");
  if (calibration.sign != 1 && calibration.sign != -1) Reject("--sign " + std::to_string(calibration.sign), "1, -1");
  if (!(calibration.protect >= 0 && calibration.protect < 1)) {
    Reject("--protect " + std::to_string(calibration.protect), "a number from 0 to below 1");
  }
  const ScModelConfig& sc = calibration.sc;
  if (sc.files.mp != nullptr) throw InvalidInput("--mp: is what stoch calibrate mp makes");
  if (sc.attention == AttentionMode::kPerHead) {
    throw InvalidInput(
        "SC setting attention = per_head: a row's scales span its window; allowed here is per_token, "
        "per_row, exact");
  }
  if (sc.dilated.enabled) throw InvalidInput("SC setting attention = dilated: has no mixed lengths");
  if (!IsBatchInvariant(sc)) {
    throw InvalidInput("SC setting granularity, group_a: allowed here are rows that depend on themselves alone");
  }
  if (config.HasExperts()) throw InvalidInput("a model with experts has no mixed lengths");
  // What a table of these lengths would be refused for.
  auto table = std::make_shared<MpFile>();
  table->name = "--levels " + list;
  table->levels = levels;
  MpBucket bucket;
  bucket.thresholds.assign(levels.size() - 1, 0.0);
  bucket.metric_lo = 0;
  bucket.metric_hi = 1;
  for (int i = 0; i < kNumScOperators; ++i) {
    const auto id = static_cast<ScOperatorId>(i);
    const std::string op(ScOperatorName(id));
    table->operator_defaults[op] = bucket;
    if (!calibration.chunks || id == ScOperatorId::kQk || id == ScOperatorId::kAv) continue;
    MpBucket chunk = bucket;
    chunk.levels.assign(levels.rbegin(), levels.rend());
    table->chunk_buckets[op + ":t0:l0"] = chunk;
  }
  ScModelConfig with = sc;
  with.files.mp = std::move(table);
  ScPlan(with, config);
}

CalibratedLengths CalibrateLengths(const LengthCalibration& calibration, const std::shared_ptr<Backend>& backend,
                                   const std::string& model, std::span<const int32_t> ids) {
  return std::move(CalibrateLengths({&calibration, 1}, backend, model, ids).front());
}

std::vector<CalibratedLengths> CalibrateLengths(std::span<const LengthCalibration> calibrations,
                                                const std::shared_ptr<Backend>& backend, const std::string& model,
                                                std::span<const int32_t> ids) {
  STOCH_CHECK(!calibrations.empty());
  const ModelFiles files = OpenModelFiles(model);
  for (const LengthCalibration& calibration : calibrations) CheckLengthCalibration(calibration, files.config);
  const LengthCalibration& first = calibrations.front();
  CheckWindows(first.windows, ids.size());
  const std::vector<int> levels(first.levels.rbegin(), first.levels.rend());
  const SampledOperators sampled = SampleOperators(first, files, levels, backend, model, ids);
  std::vector<CalibratedLengths> tables;
  for (const LengthCalibration& calibration : calibrations) tables.push_back(FitTable(calibration, sampled, levels));
  return tables;
}

}  // namespace stoch
