// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/parallel_for.h"
#include "loader/bounded_json.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/research/mp_file.h"
#include "models/sc_plan.h"
#include "research/calibrate/exact_attention.h"
#include "research/calibrate/mp_table.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

struct Extremes {
  std::vector<float> lows, highs;  // one of each call

  void Add(std::span<const float> metrics) {
    const auto [low, high] = std::minmax_element(metrics.begin(), metrics.end());
    lows.push_back(*low);
    highs.push_back(*high);
  }
  static float LowerMedian(std::vector<float> values) {
    const auto middle = static_cast<ptrdiff_t>((values.size() - 1) / 2);
    std::nth_element(values.begin(), values.begin() + middle, values.end());
    return values[static_cast<size_t>(middle)];
  }
};

enum class Section : uint8_t { kBuckets, kDefaults, kChunks };

// 0..cols - 1 without `own`, which ascends.
std::vector<int32_t> DispatchChannels(int64_t cols, std::span<const int32_t> own) {
  std::vector<int32_t> channels;
  for (int32_t d = 0; d < cols; ++d) {
    if (!std::binary_search(own.begin(), own.end(), d)) channels.push_back(d);
  }
  return channels;
}

// Sees every row of every call and keeps the extremes of the buckets that would dispatch it.
class Collector final : public OpObserver {
 public:
  Collector(const MpFile& table, const ScModelConfig& sc, const DecoderConfig& config, int threads)
      : table_(table), plan_(sc, config), config_(config), threads_(threads) {}

  void OnLinear(const LinearCall& call, const float* x, int64_t rows, int64_t cols, int64_t stride) override {
    const int layer = call.site.layer;
    if (layer < 0) return;
    for (const BlockLinear& linear : config_.architecture->linears) {
      if (GroupName(linear.group) != call.site.op) continue;
      const ScOperatorId id = OperatorOf(linear.id);
      const std::string op(ScOperatorName(id));
      const auto own = table_.protected_channels.find(op + ":b" + std::to_string(layer));
      const std::vector<int32_t> dispatch = DispatchChannels(
          cols, own == table_.protected_channels.end() ? std::span<const int32_t>() : std::span(own->second));
      const auto n = static_cast<int64_t>(dispatch.size());
      const int64_t chunk = Resolve(plan_.Config(layer, id)).chunk_d;
      const int64_t size = chunk > 0 ? chunk : std::max<int64_t>(n, 1);
      const int64_t chunks = (n + size - 1) / size;
      std::vector<float> by_row(static_cast<size_t>(rows));
      std::vector<float> by_chunk(static_cast<size_t>(rows * chunks));
      ParallelFor(rows, threads_, [&](int64_t i) {
        std::vector<float> row;
        for (const int32_t d : dispatch) row.push_back(x[i * stride + d]);
        by_row[static_cast<size_t>(i)] = Metric(op, row.data(), n);
        for (int64_t c = 0; c < chunks; ++c) {
          by_chunk[static_cast<size_t>(i * chunks + c)] =
              ScRowMetric(ScMetric::kAmax, 1.0f, row.data() + c * size, std::min(size, n - c * size));
        }
      });
      AddRows(op, layer, by_row);
      const std::string key = Key(op, layer, table_.chunk_layer_buckets);
      if (table_.chunk_buckets.contains(key) && !by_chunk.empty()) found_[{Section::kChunks, key}].Add(by_chunk);
    }
  }

  void OnAttention(const AttentionCall& call, const PassLayout& layout) override {
    const int layer = call.site.layer;
    const ExactAttention exact(call, layout);
    const int64_t pairs = exact.heads() * exact.rows();
    const bool has_av = Uses("av", layer);
    std::vector<float> queries(static_cast<size_t>(pairs));
    std::vector<float> probabilities(has_av ? static_cast<size_t>(pairs) : 0);
    ParallelFor(pairs, threads_, [&](int64_t pair) {
      const int64_t head = pair / exact.rows();
      const int64_t row = pair % exact.rows();
      queries[static_cast<size_t>(pair)] = Metric("qk", exact.Query(head, row), exact.head_dim());
      if (!has_av) return;
      const std::vector<float> p = exact.Probabilities(exact.Scores(head, row), row);
      probabilities[static_cast<size_t>(pair)] = Metric("av", p.data(), static_cast<int64_t>(p.size()));
    });
    AddRows("qk", layer, queries);
    if (has_av) AddRows("av", layer, probabilities);
  }

  const std::map<std::pair<Section, std::string>, Extremes>& found() const { return found_; }

 private:
  std::string Key(const std::string& op, int layer, int64_t buckets) const {
    return op + ":t0:l" + std::to_string(LayerBucket(layer, config_.num_hidden_layers, buckets));
  }
  bool Uses(const std::string& op, int layer) const {
    return table_.buckets.contains(Key(op, layer, table_.layer_buckets)) || table_.operator_defaults.contains(op);
  }
  float Metric(const std::string& op, const float* x, int64_t n) const {
    const auto found = table_.dispatch.find(op);
    const MpDispatch dispatch = found == table_.dispatch.end() ? MpDispatch() : found->second;
    const ScMetric metric = dispatch.metric == "l2"      ? ScMetric::kL2
                            : dispatch.metric == "crest" ? ScMetric::kCrest
                                                         : ScMetric::kAmax;
    return ScRowMetric(metric, static_cast<float>(dispatch.sign), x, n);
  }
  void AddRows(const std::string& op, int layer, std::span<const float> metrics) {
    const std::string key = Key(op, layer, table_.layer_buckets);
    if (table_.buckets.contains(key)) found_[{Section::kBuckets, key}].Add(metrics);
    if (table_.operator_defaults.contains(op)) found_[{Section::kDefaults, op}].Add(metrics);
  }

  const MpFile& table_;
  ScPlan plan_;
  const DecoderConfig& config_;
  const int threads_;
  std::map<std::pair<Section, std::string>, Extremes> found_;
};

}  // namespace

std::string RescaleTable(const Rescaling& rescaling, const std::string& text, const std::string& name,
                         const TableOrigin& origin, const std::shared_ptr<Backend>& backend, const std::string& model,
                         std::span<const int32_t> ids) {
  std::string contents;
  Json root = ParseBoundedJson(text, name);
  if (root.is_object() && root.contains("type")) {
    throw InvalidInput(name + ": type = " + root["type"].dump() + ": allowed is the table itself, not its wrapper");
  }
  const MpFile table = ParseMpFile(text, name, {}, &contents);
  const ModelFiles files = OpenModelFiles(model);
  if (files.config.HasExperts()) throw InvalidInput(files.name + ": a model with experts has no mixed lengths");
  if (rescaling.sc.files.mp != nullptr) throw InvalidInput("--mp: is the table, not one of the settings");
  if (rescaling.sc.dilated.enabled) throw InvalidInput("SC setting attention = dilated: has no mixed lengths");
  CheckWindows(rescaling.windows, ids.size());
  Collector collector(table, rescaling.sc, files.config, rescaling.windows.threads);
  ObserveExactWindows(rescaling.windows, backend, model, ids, &collector);
  if (collector.found().empty()) throw InvalidInput(name + ": has no bucket of a layer of " + files.name);

  for (const auto& [at, extremes] : collector.found()) {
    Json& bucket = at.first == Section::kChunks     ? root["per_row_chunk"]["buckets"][at.second]
                   : at.first == Section::kDefaults ? root["operator_defaults"][at.second]
                                                    : root["buckets"][at.second];
    if (bucket.is_array()) bucket = Json{{"thresholds", bucket}};
    const float low = Extremes::LowerMedian(extremes.lows);
    const float high = Extremes::LowerMedian(extremes.highs);
    bucket["metric_lo"] = static_cast<double>(low);
    // Rows that are all alike still need two constants.
    bucket["metric_hi"] = static_cast<double>(high > low ? high : low + std::max(1.0f, std::abs(low)));
  }
  root["normalise"] = "fixed";
  if (!root.contains("metadata") || !root["metadata"].is_object()) root["metadata"] = Json::object();
  for (const auto& [key, value] : origin) root["metadata"][key] = value;
  return root.dump(1) + '\n';
}

}  // namespace stoch
