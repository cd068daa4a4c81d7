// SPDX-License-Identifier: Apache-2.0
#include "models/sc_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/sc/sc_parameters.h"
#include "loader/quote.h"
#include "models/sc_settings.h"

namespace stoch {
namespace {

bool IsAttention(ScOperatorId id) { return id == ScOperatorId::kQk || id == ScOperatorId::kAv; }

ScMetric MetricOf(const std::string& name) {
  if (name == "l2") return ScMetric::kL2;
  return name == "crest" ? ScMetric::kCrest : ScMetric::kAmax;
}

// Whether a product with 0 differs from 0 for some other operand.
bool CountsZero(const ScConfig& op) {
  if (op.count_table.get() != nullptr) {
    const CountTable& table = *op.count_table;
    const int zero = table.levels == 1 << op.sc_prec ? (1 << (op.sc_prec - 1)) - 1 : 0;  // codes q + Q, or magnitudes
    for (int mask = 0; mask < table.masks; ++mask) {
      for (int b = 0; b < table.levels; ++b) {
        if (table.at(mask, zero, b) != 0) return true;
      }
    }
    return false;
  }
  if (op.multiplier.get() == nullptr) return false;
  const int low = op.multiplier->is_signed ? -128 : 0;
  for (int b = low; b < low + 256; ++b) {
    if (op.multiplier->at(0, b) != 0) return true;
  }
  return false;
}

// "40.q_proj.stoc_len = 64": the first setting of a layer that is not every layer's.
std::string SettingOf(const ScModelConfig& sc, int layer) {
  for (int i = 0; i < kNumScOperators; ++i) {
    const auto id = static_cast<ScOperatorId>(i);
    for (const ScParameter& parameter : ScParameters()) {
      const std::string own = parameter.get(sc.at(layer, id), parameter);
      if (own == parameter.get(sc.at(id), parameter)) continue;
      return std::to_string(layer) + '.' + std::string(ScOperatorName(id)) + '.' + std::string(parameter.name) + " = " +
             own;
    }
  }
  return "of layer " + std::to_string(layer);
}

std::string LayerOp(std::string_view op, int layer) { return std::string(op) + ":b" + std::to_string(layer); }

// Scores of length 0 are no pruning: softmax makes them uniform.
void RefusePrunedScores(const std::string& file, ScOperatorId id, const ScLengthRule& rule, const ScConfig& op) {
  if (id != ScOperatorId::kQk || rule.Lengths().back() != 0) return;
  ScConfig longest = op;
  longest.stoc_len = 0;
  throw InvalidInput(file + ": qk: length 0 is uniform attention, not pruning: allowed is 1.." +
                     std::to_string(Resolve(longest).stoc_len));
}

}  // namespace

ScPlan::ScPlan(const ScModelConfig& sc, const DecoderConfig& config) : sc_(sc), config_(config) {
  if (sc.dilated.enabled && sc.files.mp != nullptr) {
    throw InvalidInput(
        "--mp: attention = dilated: lengths are calibrated on rows that see every position: allowed is "
        "attention = per_token, per_head, per_row");
  }
  const int64_t layers = config.num_hidden_layers;
  for (const auto& [op, entries] : sc.files.mask_layers) {
    if (entries == layers) continue;
    throw InvalidInput(sc.files.mask_name + ": schedule " + op + " has " + std::to_string(entries) + " entries of " +
                       std::to_string(layers));
  }
  if (!sc.layers.empty() && sc.layers.rbegin()->first >= layers) {
    throw InvalidInput("SC setting " + SettingOf(sc, sc.layers.rbegin()->first) + ": the model has layers 0.." +
                       std::to_string(layers - 1));
  }
  if (sc.files.mp != nullptr) MergeProtected();
  // All that a file could have wrong for this model, before any weight is read.
  for (int layer = 0; layer < layers; ++layer) {
    for (int i = 0; i < kNumScOperators; ++i) {
      const auto id = static_cast<ScOperatorId>(i);
      if (id == ScOperatorId::kLmHead || (IsAttention(id) && sc.attention == AttentionMode::kExact)) continue;
      CheckOperator(layer, id);
    }
  }
  if (sc.files.smooth != nullptr) CheckSmooth();
}

void ScPlan::CheckOperator(int layer, ScOperatorId id) const {
  const ScConfig& op = sc_.at(layer, id);
  // Sums of p v run over positions that a row does not see, where p = 0: in whole windows over those of other rows, and
  // behind a sliding window from the begin of a page on. Only products with 0 that are 0 leave such sums as they are.
  const bool is_whole = sc_.attention != AttentionMode::kPerToken;
  const bool is_sliding = config_.WindowOf(layer) > 0 && !sc_.dilated.enabled;
  const bool has_table = !HasSource(op.gate) && op.arith == ScArith::kSc;
  if (id == ScOperatorId::kAv && has_table && (is_whole || is_sliding) && CountsZero(op)) {
    const std::string sums = is_whole ? "attention = per_head, per_row sums positions that a row does not see: allowed "
                                        "is attention = per_token, exact"
                                      : "layer " + std::to_string(layer) +
                                            " has a sliding window, so that sums begin before what a row sees: "
                                            "allowed are counts of 0 for 0";
    throw InvalidInput(std::string("SC setting av.gate = ") + (op.gate == ScGate::kCounts ? "counts" : "table") +
                       ": its products with 0 are not all 0, and " + sums);
  }
  if (IsAttention(id) && op.arith == ScArith::kFp) RejectExactProduct(ScOperatorName(id));
  if (op.arith != ScArith::kSc || !HasSource(op.gate) || sc_.files.mp == nullptr) return;
  // Channels of experts differ, and bands divide them.
  const int64_t experts = IsOfExperts(layer, id) && !sc_.files.mp->chunk_bands.empty() ? config_.num_experts : 1;
  for (int64_t expert = 0; expert < experts; ++expert) Rule(layer, id, op, DispatchChannels(layer, id, expert));
}

void ScPlan::CheckSmooth() const {
  for (const auto& [name, scales] : sc_.files.smooth->scales) {
    bool found = false;
    for (int layer = 0; layer < config_.num_hidden_layers && !found; ++layer) {
      for (int i = 0; i < kNumScOperators && !found; ++i) {
        const auto id = static_cast<ScOperatorId>(i);
        const auto size = static_cast<int64_t>(scales.size());
        if (name != std::to_string(layer) + '.' + std::string(ScOperatorName(id))) continue;
        if (id == ScOperatorId::kQk) {
          found = size == config_.head_dim || size == config_.num_key_value_heads * config_.head_dim;
        }
        if (IsAttention(id) || id == ScOperatorId::kLmHead) continue;
        const int64_t in_features = InFeatures(layer, id);
        found = size == in_features || (IsOfExperts(layer, id) && size == config_.num_experts * in_features);
      }
    }
    if (!found) {
      throw InvalidInput(sc_.files.smooth->name + ": layers." + name + " of " + std::to_string(scales.size()) +
                         " factors: the model has no linear, and no qk, of that name and size");
    }
  }
}

bool ScPlan::IsOfExperts(int layer, ScOperatorId id) const {
  if (layer < 0 || !config_.HasExperts(layer)) return false;
  const auto& linears = config_.architecture->linears;
  return std::any_of(linears.begin(), linears.end(),
                     [id](const BlockLinear& linear) { return OperatorOf(linear.id) == id && !linear.expert.empty(); });
}

int64_t ScPlan::InFeatures(int layer, ScOperatorId id) const {
  for (const BlockLinear& linear : config_.architecture->linears) {
    if (OperatorOf(linear.id) == id) return SizeOf(config_, IsOfExperts(layer, id) ? ExpertAxis(linear.in) : linear.in);
  }
  return config_.hidden_size;
}

int64_t ScPlan::DispatchChannels(int layer, ScOperatorId id, int64_t expert) const {
  if (IsAttention(id)) return 0;
  const std::vector<int32_t>* own = ProtectedChannels(layer, ScOperatorName(id), expert);
  return InFeatures(layer, id) - (own == nullptr ? 0 : static_cast<int64_t>(own->size()));
}

// "op:bN:uK": of expert K; units of a dense layer leave out their channels together.
void ScPlan::MergeProtected() {
  for (const auto& [key, channels] : sc_.files.mp->protected_channels) {
    const size_t unit = key.find(":u");
    bool of_experts = false;
    for (int layer = 0; unit != std::string::npos && layer < config_.num_hidden_layers; ++layer) {
      for (const BlockLinear& linear : config_.architecture->linears) {
        const ScOperatorId id = OperatorOf(linear.id);
        of_experts =
            of_experts || (IsOfExperts(layer, id) && key.substr(0, unit) == LayerOp(ScOperatorName(id), layer));
      }
    }
    if (of_experts) {
      const std::string number = key.substr(unit + 2);
      bool is_there = false;
      for (int64_t expert = 0; expert < config_.num_experts; ++expert) {
        is_there = is_there || number == std::to_string(expert);
      }
      if (!is_there) {
        throw InvalidInput(sc_.files.mp->name + ": protected_channels " + Quoted(key) + ": the layer has experts 0.." +
                           std::to_string(config_.num_experts - 1));
      }
    }
    std::vector<int32_t>& merged = protected_[of_experts ? key : key.substr(0, unit)];
    merged.insert(merged.end(), channels.begin(), channels.end());
    std::sort(merged.begin(), merged.end());
    merged.erase(std::unique(merged.begin(), merged.end()), merged.end());
  }
}

const std::vector<int32_t>* ScPlan::ProtectedChannels(int layer, std::string_view op, int64_t expert) const {
  auto found = protected_.find(LayerOp(op, layer) + ":u" + std::to_string(std::max<int64_t>(expert, 0)));
  if (found == protected_.end()) found = protected_.find(LayerOp(op, layer));
  return found == protected_.end() || found->second.empty() ? nullptr : &found->second;
}

const MpBucket* ScPlan::Bucket(const std::map<std::string, MpBucket>& buckets, int64_t count, int layer,
                               std::string_view op, std::string* key) const {
  *key = std::string(op) + ":t0:l" + std::to_string(LayerBucket(layer, config_.num_hidden_layers, count));
  const auto found = buckets.find(*key);
  return found == buckets.end() ? nullptr : &found->second;
}

void ScPlan::CheckGrids(std::span<const int> lengths, const ScConfig& op) const {
  const MpFile& mp = *sc_.files.mp;
  if (mp.grids.empty()) return;
  for (const int length : lengths) {
    if (length == 0) continue;
    const std::string key = mp.name + ": per_rung_grid." + std::to_string(length);
    const auto grid = mp.grids.find(length);
    if (grid == mp.grids.end()) throw InvalidInput(key + ": has no grid, where other lengths have one");
    const int limit = 1 << (op.halve ? op.sc_prec - 1 : op.sc_prec);
    if (grid->second > limit) {
      throw InvalidInput(key + " = " + std::to_string(grid->second) + ": allowed is 1.." + std::to_string(limit));
    }
  }
}

void ScPlan::CheckLengths(const ScLengthRule& rule, const ScConfig& op, const std::string& where) const {
  ScConfig one = op;
  one.stoc_len = 0;
  const ScConfig resolved = Resolve(one);
  const int limit = resolved.stoc_len;
  std::vector<int> lengths = rule.Lengths();
  if (op.adder != ScAdder::kCounter) throw InvalidInput(where + ": mixed lengths take adder = counter");
  constexpr size_t kMaxLengths = 32;
  if (lengths.size() > kMaxLengths) {
    throw InvalidInput(where + ": " + std::to_string(lengths.size()) + " lengths: allowed are 32");
  }
  for (const int length : lengths) {
    if (length <= limit) continue;
    throw InvalidInput(where + ": length " + std::to_string(length) + ": allowed is 0.." + std::to_string(limit));
  }
  CheckGrids(lengths, op);
  if (resolved.mode != ScMode::kBipolar || !HasSource(resolved.gate)) {
    throw InvalidInput(where + ": mixed lengths take mode = bipolar and a gate of streams");
  }
  if (resolved.granularity == ScGranularity::kPerTensor) {
    throw InvalidInput(where + ": mixed lengths take granularity = per_row");
  }
  const bool within_rows = rule.by_chunk();
  if (within_rows && resolved.chunk_d == 0)
    throw InvalidInput(where + ": lengths that differ in a row take chunk_d > 0");
  const int full = 1 << resolved.sc_prec;
  if (within_rows && resolved.rng_levels == full && std::count(lengths.begin(), lengths.end(), full) > 0) {
    throw InvalidInput(where + ": streams of " + std::to_string(full) + " cycles on a grid of " + std::to_string(full) +
                       " are not scrambled and shorter ones are, so lengths do not nest");
  }
}

std::shared_ptr<const ScLengthRule> ScPlan::Rule(int layer, ScOperatorId id, const ScConfig& op,
                                                 int64_t channels) const {
  if (sc_.files.mp == nullptr) return nullptr;
  const MpFile& mp = *sc_.files.mp;
  // gate_proj and up_proj of an expert share their rows, and the lengths of them.
  const bool shares = id == ScOperatorId::kUpProj && IsOfExperts(layer, id);
  const std::string_view name = ScOperatorName(shares ? ScOperatorId::kGateProj : id);
  const ScConfig resolved = Resolve(op);
  if (mp.sc_prec && *mp.sc_prec != resolved.sc_prec) {
    throw InvalidInput(mp.name + ": sc_prec = " + std::to_string(*mp.sc_prec) + ": " + std::string(name) + " has " +
                       std::to_string(resolved.sc_prec));
  }
  if (mp.halve && *mp.halve != resolved.halve) {
    throw InvalidInput(mp.name + ": halve_bipolar_stoc_len = " + (*mp.halve ? "true" : "false") + ": " +
                       std::string(name) + " has halve = " + (resolved.halve ? "1" : "0"));
  }
  auto rule = std::make_shared<ScLengthRule>();
  rule->normalise = sc_.files.normalise;
  if (const auto dispatch = mp.dispatch.find(std::string(name)); dispatch != mp.dispatch.end()) {
    rule->metric = MetricOf(dispatch->second.metric);
    rule->sign = static_cast<float>(dispatch->second.sign);
  }
  std::string key;
  if (!mp.level_fractions.empty()) {
    rule->scope = ScLengthScope::kFractions;
    rule->normalise = ScNormalise::kCall;
    rule->levels = mp.levels;
    rule->thresholds.assign(mp.levels.size() - 1, 0.0f);
    rule->fractions = mp.level_fractions;
    CheckLengths(*rule, op, mp.name);
    RefusePrunedScores(mp.name, id, *rule, op);
    return rule;
  }
  const MpBucket* bucket = nullptr;
  if (!IsAttention(id)) bucket = Bucket(mp.chunk_buckets, mp.chunk_layer_buckets, layer, name, &key);
  const bool by_chunk = bucket != nullptr;
  if (by_chunk) {
    rule->scope = ScLengthScope::kChunk;
  } else {
    bucket = Bucket(mp.buckets, mp.layer_buckets, layer, name, &key);
    if (bucket == nullptr) {
      const auto found = mp.operator_defaults.find(std::string(name));
      if (found != mp.operator_defaults.end()) bucket = &found->second;
    }
    if (bucket == nullptr) {
      throw InvalidInput(mp.name + ": no thresholds for " + std::string(name) + " of layer " + std::to_string(layer) +
                         " (bucket " + key + ")");
    }
  }
  for (const double threshold : bucket->thresholds) rule->thresholds.push_back(static_cast<float>(threshold));
  rule->levels = bucket->levels.empty() ? mp.levels : bucket->levels;
  if (rule->normalise == ScNormalise::kFixed) {
    if (!bucket->metric_lo || !bucket->metric_hi) {
      throw InvalidInput(
          mp.name + ": bucket " + key +
          " has no metric_lo and metric_hi: run `stoch calibrate rescale` or choose --mp-normalise call");
    }
    rule->lo = static_cast<float>(*bucket->metric_lo);
    rule->hi = static_cast<float>(*bucket->metric_hi);
  }
  if (!by_chunk && mp.escape_k) {
    if (!bucket->metric_mean || !bucket->metric_std) {
      throw InvalidInput(mp.name + ": bucket " + key + " has no metric_mean and metric_std for escape_gate_k");
    }
    rule->escapes = true;
    rule->escape_threshold = *bucket->metric_mean + *mp.escape_k * *bucket->metric_std;
    rule->escape_len = mp.escape_len;
  }
  const auto ladders = mp.ladders.find(key);
  const auto bands = mp.chunk_bands.find(LayerOp(name, layer));
  if (!by_chunk && !IsAttention(id) && ladders != mp.ladders.end() && bands != mp.chunk_bands.end()) {
    rule->ladders = ladders->second;
    rule->chunk_bands = bands->second;
    if (resolved.chunk_d != mp.band_chunk_d) {
      throw InvalidInput(mp.name + ": k_bands.chunk_d = " + std::to_string(mp.band_chunk_d) + ": " + std::string(name) +
                         " has chunk_d = " + std::to_string(resolved.chunk_d));
    }
    const int64_t chunks = (channels + mp.band_chunk_d - 1) / mp.band_chunk_d;
    if (static_cast<int64_t>(bands->second.size()) != chunks) {
      throw InvalidInput(mp.name + ": k_bands.chunk_bands " + bands->first + " has " +
                         std::to_string(bands->second.size()) + " chunks: the operator has " + std::to_string(chunks));
    }
  }
  CheckLengths(*rule, op, mp.name + ": bucket " + key);
  RefusePrunedScores(mp.name, id, *rule, op);
  return rule;
}

const std::vector<ScOperatorPtr>& ScPlan::ByLength(int layer, ScOperatorId id, const ScConfig& op,
                                                   const ScLengthRule& rule) {
  std::vector<ScOperatorPtr>& operators = by_length_[{layer, id}];
  if (operators.empty()) operators = MakeScOperators(op, rule.Lengths(), sc_.files.mp->grids);
  return operators;
}

std::vector<float> ScPlan::Smooth(int layer, ScOperatorId id, int64_t expert) const {
  if (sc_.files.smooth == nullptr) return {};
  const auto found = sc_.files.smooth->scales.find(std::to_string(layer) + '.' + std::string(ScOperatorName(id)));
  if (found == sc_.files.smooth->scales.end()) return {};
  const std::vector<float>& all = found->second;
  const int64_t size = InFeatures(layer, id);
  if (static_cast<int64_t>(all.size()) == size) return all;
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(std::max<int64_t>(expert, 0) * size);
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

ScExtrasPtr ScPlan::Extras(int layer, ScOperatorId id, const ScConfig& op, int64_t expert) {
  const std::string_view name = ScOperatorName(id);
  auto extras = std::make_shared<ScExtras>();
  extras->op = std::string(name);
  const bool streams = op.arith == ScArith::kSc && HasSource(op.gate);
  if (!IsAttention(id) && id != ScOperatorId::kLmHead) {
    extras->smooth = Smooth(layer, id, expert);
    if (const std::vector<int32_t>* own = ProtectedChannels(layer, name, expert); own != nullptr && streams) {
      const int64_t channels = InFeatures(layer, id);
      if (own->back() >= channels) {
        throw InvalidInput(sc_.files.mp->name + ": protected_channels " + LayerOp(name, layer) + " lists channel " +
                           std::to_string(own->back()) + ": the operator has 0.." + std::to_string(channels - 1));
      }
      extras->protected_channels = *own;
      CheckGrids({&sc_.files.mp->protected_len, 1}, op);
      extras->protected_op = MakeScOperator(AtLength(op, sc_.files.mp->protected_len, sc_.files.mp->grids));
    }
  }
  if (streams && id != ScOperatorId::kLmHead) {
    extras->lengths = Rule(layer, id, op, DispatchChannels(layer, id, expert));
    if (extras->lengths != nullptr) extras->by_length = ByLength(layer, id, op, *extras->lengths);
  }
  // Who draws faults is told of its place; other hardware is all in the operator, but takes the same kernels.
  const bool ideal = IsAttention(id) || (!HasFaults(op) && HasPlainSums(op));
  extras->site.layer = layer < 0 ? config_.num_hidden_layers : layer;
  extras->site.op = static_cast<int>(id);
  extras->site.unit = std::max<int64_t>(expert, 0);
  const bool none = extras->lengths == nullptr && extras->protected_op == nullptr && extras->smooth.empty();
  return none && ideal ? nullptr : extras;
}

ScConfig ScPlan::Config(int layer, ScOperatorId id) const {
  ScConfig op = layer < 0 ? sc_.at(id) : sc_.at(layer, id);
  const bool streams = op.arith == ScArith::kSc && HasSource(op.gate);
  constexpr int64_t kIntChunk = 128;
  if (op.arith != ScArith::kSc && IsAttention(id)) op.chunk_d = kIntChunk;
  if (streams && sc_.files.mp != nullptr && id != ScOperatorId::kLmHead) {
    op = AtLength(op, Rule(layer, id, op, DispatchChannels(layer, id, 0))->Lengths().front(), sc_.files.mp->grids);
  }
  return op;
}

LinearSpec ScPlan::Linear(int layer, ScOperatorId id, int64_t expert) {
  const ScConfig& op = layer < 0 ? sc_.at(id) : sc_.at(layer, id);
  if (id == ScOperatorId::kLmHead && (!sc_.sc_lm_head || op.arith == ScArith::kFp)) return ExactHead();
  if (op.arith == ScArith::kFp) return {Precision::kFp32, nullptr};
  return {Precision::kSc, MakeScOperator(Config(layer, id)), Extras(layer, id, op, expert)};
}

KvCacheSpec::Products ScPlan::Attention(int layer) {
  STOCH_CHECK(sc_.attention != AttentionMode::kExact);
  using enum ScOperatorId;
  return {MakeScOperator(Config(layer, kQk)), MakeScOperator(Config(layer, kAv)),
          Extras(layer, kQk, sc_.at(layer, kQk), -1), Extras(layer, kAv, sc_.at(layer, kAv), -1)};
}

std::vector<KvCacheSpec::Products> ScPlan::AttentionLayers(int first, int count) {
  std::vector<KvCacheSpec::Products> layers;
  if (!has_attention_layers()) return layers;
  for (int layer = first; layer < first + count; ++layer) layers.push_back(Attention(layer));
  return layers;
}

std::vector<float> ScPlan::QkSmooth(int layer) const {
  if (sc_.files.smooth == nullptr || sc_.attention == AttentionMode::kExact) return {};
  const auto found = sc_.files.smooth->scales.find(std::to_string(layer) + ".qk");
  if (found == sc_.files.smooth->scales.end()) return {};
  std::vector<float> factors = found->second;
  const auto size = static_cast<size_t>(config_.num_key_value_heads * config_.head_dim);
  while (factors.size() < size) {  // one head's, for all
    factors.push_back(factors[factors.size() - static_cast<size_t>(config_.head_dim)]);
  }
  return factors;
}

bool ScPlan::has_attention_layers() const {
  if (sc_.attention == AttentionMode::kExact) return false;
  using enum ScOperatorId;
  if (sc_.files.mp != nullptr) return true;
  return std::any_of(sc_.layers.begin(), sc_.layers.end(), [&](const auto& entry) {
    return sc_.at(entry.first, kQk) != sc_.at(kQk) || sc_.at(entry.first, kAv) != sc_.at(kAv);
  });
}

}  // namespace stoch
