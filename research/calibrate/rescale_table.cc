// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/parallel_for.h"
#include "kernels/expert_site.h"
#include "loader/bounded_json.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/json_text.h"
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
    const ExpertSite site = ParseExpertSite(call.site.op);
    if (site.expert < 0) tokens_ = rows;
    for (const BlockLinear& linear : config_.architecture->linears) {
      if (GroupName(linear.group) != site.op) continue;
      const ScOperatorId id = OperatorOf(linear.id);
      const std::string op(ScOperatorName(id));
      const std::vector<int32_t> dispatch = DispatchChannels(cols, Protected(op, layer, site.expert));
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
      if (table_.chunk_buckets.contains(key)) AddTo({Section::kChunks, key}, by_chunk);
    }
    // Experts are one call together.
    shown_ += rows;
    if (site.expert >= 0 && shown_ < tokens_ * config_.num_experts_per_tok) return;
    EndCall();
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
    EndCall();
  }

  const std::map<std::pair<Section, std::string>, Extremes>& found() const { return found_; }

 private:
  using Place = std::pair<Section, std::string>;

  // "op:bN", or "op:bN:uK" of an expert before it; units of a dense layer together.
  std::vector<int32_t> Protected(const std::string& op, int layer, int64_t expert) const {
    const std::string key = op + ":b" + std::to_string(layer);
    const auto& all = table_.protected_channels;
    if (expert >= 0) {
      auto found = all.find(key + ":u" + std::to_string(expert));
      if (found == all.end()) found = all.find(key);
      return found == all.end() ? std::vector<int32_t>() : found->second;
    }
    std::vector<int32_t> channels;
    for (const auto& [name, own] : all) {
      if (name == key || name.starts_with(key + ":u")) channels.insert(channels.end(), own.begin(), own.end());
    }
    std::sort(channels.begin(), channels.end());
    channels.erase(std::unique(channels.begin(), channels.end()), channels.end());
    return channels;
  }
  void AddTo(const Place& place, std::span<const float> metrics) {
    std::vector<float>& of_call = of_call_[place];
    of_call.insert(of_call.end(), metrics.begin(), metrics.end());
  }
  void EndCall() {
    for (const auto& [place, metrics] : of_call_) {
      if (!metrics.empty()) found_[place].Add(metrics);
    }
    of_call_.clear();
    shown_ = 0;
  }
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
    if (table_.buckets.contains(key)) AddTo({Section::kBuckets, key}, metrics);
    if (table_.operator_defaults.contains(op)) AddTo({Section::kDefaults, op}, metrics);
  }

  const MpFile& table_;
  ScPlan plan_;
  const DecoderConfig& config_;
  const int threads_;
  int64_t tokens_ = 0, shown_ = 0;               // of the call on its way
  std::map<Place, std::vector<float>> of_call_;  // its metrics
  std::map<Place, Extremes> found_;
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
  if (rescaling.sc.files.mp != nullptr) throw InvalidInput("--mp: is the table, not one of the settings");
  if (rescaling.sc.dilated.enabled) throw InvalidInput("SC setting attention = dilated: rows have one stream length");
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
  return JsonText(root, 1) + '\n';
}

}  // namespace stoch
