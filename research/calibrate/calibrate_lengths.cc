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
  bool has_experts = false;

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

// Samples [first, first + count) of `from`.
void AppendSamples(const LengthSamples& from, size_t first, size_t count, size_t levels, LengthSamples* to) {
  const auto append = [first, count](const auto& values, size_t each, auto* target) {
    if (values.empty()) return;
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first * each);
    target->insert(target->end(), begin, begin + static_cast<std::ptrdiff_t>(count * each));
  };
  append(from.metrics, 1, &to->metrics);
  for (size_t i = 0; i < from.candidates.size(); ++i) append(from.candidates[i], 1, &to->candidates[i]);
  append(from.stands_for, 1, &to->stands_for);
  append(from.macs, 1, &to->macs);
  append(from.errors, levels, &to->errors);
}

// The linears of a model, one after the other.
class LinearSampler {
 public:
  LinearSampler(const LengthCalibration& calibration, const ModelFiles& files, const std::vector<int>& levels,
                const LengthCollector& collector, HostProducts* products, SampledOperators* sampled)
      : calibration_(calibration),
        files_(files),
        levels_(levels),
        collector_(collector),
        products_(products),
        sampled_(sampled) {}

  // Requires: `config` is in streams.
  void Add(int layer, const BlockLinear& linear, const ScConfig& config) {
    const ScOperatorId id = OperatorOf(linear.id);
    const SampledInput& input = collector_.At(layer, linear.group);
    const bool of_experts = files_.config.HasExperts(layer) && !linear.expert.empty();
    // gate_proj and up_proj of experts have one length for their row: what both lose is its error.
    const ScOperatorId bucket = of_experts && id == ScOperatorId::kUpProj ? ScOperatorId::kGateProj : id;
    LengthSamples& to =
        sampled_->At(calibration_, Resolve(config), layer, files_.config.num_hidden_layers, bucket, calibration_.chunks)
            .samples;
    if (of_experts) return AddExperts(layer, linear, config, input, &to);
    const std::string op(ScOperatorName(id));
    const WeightSource w = files_.weights->Matrix(LayerTensorName(layer, linear.tensor),
                                                  SizeOf(files_.config, linear.out), SizeOf(files_.config, linear.in));
    const std::vector<int32_t> own = Protected(input.largest, w, op, op + ":b" + std::to_string(layer));
    to.Append(SampleLinear(calibration_, levels_, {input, w, config, Smooth(layer, op), own}, products_));
  }

 private:
  std::vector<int32_t> Protected(const std::vector<float>& largest, const WeightSource& w, const std::string& op,
                                 const std::string& key) {
    if (calibration_.protect == 0) return {};
    return sampled_->protected_channels[key] =
               LargestChannels(largest, ReadWeight(w, calibration_.windows.threads), calibration_.protect, op);
  }
  // Factors of [in_features], or of every expert.
  const std::vector<float>* Smooth(int layer, const std::string& op) const {
    const auto& scales = calibration_.sc.files.smooth;
    if (scales == nullptr) return nullptr;
    const auto found = scales->scales.find(std::to_string(layer) + '.' + op);
    return found == scales->scales.end() ? nullptr : &found->second;
  }

  // Every expert's rows by its matrix; samples in the order in which they were taken.
  void AddExperts(int layer, const BlockLinear& linear, const ScConfig& config, const SampledInput& input,
                  LengthSamples* to) {
    const std::string op(ScOperatorName(OperatorOf(linear.id)));
    const int64_t cols = SizeOf(files_.config, ExpertAxis(linear.in));
    const std::vector<float>* all = Smooth(layer, op);
    std::vector<LengthSamples> of_expert;
    for (int64_t expert = 0; expert < files_.config.num_experts; ++expert) {
      const WeightSource w = files_.weights->Matrix(LinearTensorName(files_.config, layer, expert, linear),
                                                    SizeOf(files_.config, ExpertAxis(linear.out)), cols);
      std::vector<float> factors;
      if (all != nullptr) {
        const bool is_shared = static_cast<int64_t>(all->size()) == cols;
        const auto first = all->begin() + static_cast<std::ptrdiff_t>(is_shared ? 0 : expert * cols);
        factors.assign(first, first + static_cast<std::ptrdiff_t>(cols));
      }
      const auto largest = input.largest_of.find(expert);
      const std::vector<int32_t> own =
          Protected(largest == input.largest_of.end() ? std::vector<float>(static_cast<size_t>(cols)) : largest->second,
                    w, op, op + ":b" + std::to_string(layer) + ":u" + std::to_string(expert));
      SampledInput rows{{0, cols, {}}, {}, input.rows, input.samples};
      for (int64_t i = 0; i < input.sampled.rows; ++i) {
        if (input.experts[static_cast<size_t>(i)] != expert) continue;
        rows.sampled.values.insert(rows.sampled.values.end(), input.sampled.row(i), input.sampled.row(i) + cols);
        ++rows.sampled.rows;
      }
      of_expert.emplace_back();
      if (rows.sampled.rows == 0) continue;
      of_expert.back() =
          SampleLinear(calibration_, levels_, {rows, w, config, factors.empty() ? nullptr : &factors, own}, products_);
    }
    std::vector<size_t> taken(of_expert.size(), 0), rows(of_expert.size(), 0);
    for (const int64_t expert : input.experts) ++rows[static_cast<size_t>(expert)];
    for (const int64_t expert : input.experts) {
      const auto e = static_cast<size_t>(expert);
      const size_t each = of_expert[e].metrics.size() / rows[e];  // 1, or chunks
      AppendSamples(of_expert[e], taken[e]++ * each, each, levels_.size(), to);
    }
  }

  const LengthCalibration& calibration_;
  const ModelFiles& files_;
  const std::vector<int>& levels_;
  const LengthCollector& collector_;
  HostProducts* products_;
  SampledOperators* sampled_;
};

SampledOperators SampleOperators(const LengthCalibration& calibration, const ModelFiles& files,
                                 const std::vector<int>& levels, const std::shared_ptr<Backend>& backend,
                                 const std::string& model, std::span<const int32_t> ids) {
  LengthCollector collector(calibration, files.config, levels);
  ObserveExactWindows(calibration.windows, backend, model, ids, &collector);
  SampledOperators sampled;
  sampled.has_experts = files.config.HasExperts();
  ScPlan plan(calibration.sc, files.config);
  HostProducts products(*backend);
  LinearSampler sampler(calibration, files, levels, collector, &products, &sampled);
  const int64_t layers = files.config.num_hidden_layers;
  for (int layer = 0; layer < layers; ++layer) {
    for (const BlockLinear& linear : files.config.architecture->linears) {
      const ScConfig config = plan.Config(layer, OperatorOf(linear.id));
      if (InStreams(config)) sampler.Add(layer, linear, config);
    }
  }
  for (const auto& [at, samples] : collector.attention()) {
    const ScConfig config = Resolve(plan.Config(at.second, at.first));
    sampled.At(calibration, config, at.second, layers, at.first, false).samples.Append(samples);
  }
  if (sampled.buckets.empty()) throw InvalidInput("no operator runs in streams: there are no lengths to calibrate");
  return sampled;
}

// Experts take the rule of gate_proj for up_proj too; readers that know no such rule find the same one there.
void CopyGateToUp(MpFile* table) {
  const std::string gate = "gate_proj", up = "up_proj";
  for (auto* buckets : {&table->buckets, &table->chunk_buckets}) {
    const std::map<std::string, MpBucket> all = *buckets;
    for (const auto& [key, bucket] : all) {
      if (key.starts_with(gate + ":")) buckets->try_emplace(up + key.substr(gate.size()), bucket);
    }
  }
  const auto found = table->dispatch.find(gate);
  if (found != table->dispatch.end()) table->dispatch.try_emplace(up, found->second);
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
  if (sampled.has_experts) CopyGateToUp(&table);
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
  const int ref = calibration.ref > 0 ? calibration.ref : levels.front();
  CheckBudget(calibration.budget, levels.back(), levels.front(), ref);
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
  if (sc.dilated.enabled) throw InvalidInput("SC setting attention = dilated: rows have one stream length");
  if (!IsBatchInvariant(sc)) {
    throw InvalidInput("SC setting granularity, group_a: allowed here are rows that depend on themselves alone");
  }
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
