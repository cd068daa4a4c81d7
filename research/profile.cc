// SPDX-License-Identifier: Apache-2.0
#include "research/profile.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "kernels/base/error.h"
#include "loader/config/decoder_tensors.h"
#include "models/sc_plan.h"
#include "research/operand_capture.h"
#include "research/product_parts.h"

namespace stoch {
namespace {

using Json = nlohmann::ordered_json;

// Ends the observation of a backend, also after an error.
class Observation {
 public:
  explicit Observation(Backend& backend) : backend_(backend) {}
  ~Observation() { backend_.Observe(nullptr); }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
  void Show(OpObserver* observer) {
    if (!backend_.Observe(observer)) throw InvalidInput("profile runs on the CPU only: give --device cpu");
  }

 private:
  Backend& backend_;
};

void CheckDevice(const Engine& engine) {
  const DecoderPlacement& placement = *engine.options().placement;
  const bool split = !placement.rows.empty() || !placement.stripes.empty() ||
                     std::any_of(placement.layers.begin(), placement.layers.end(),
                                 [&](const Device& device) { return !(device == placement.layers.front()); });
  if (split) throw InvalidInput("profile runs on one device: give --device cpu");
}

// Errors of every operator, in the order of rows: layer (the LM head behind all), place in its layer, head.
class Errors {
 public:
  using Key = std::tuple<int, int, int>;

  // Place of an operator in a layer, as ListModelOperators has them.
  ErrorSums& At(int layer, const std::string& op, int head) {
    const auto found = std::find(names_.begin(), names_.end(), op);
    const auto place = static_cast<int>(found - names_.begin());
    if (found == names_.end()) names_.push_back(op);
    return sums_[{layer < 0 ? kBehind : layer, place, head}];
  }

  std::vector<ProfileRow> Rows() const {
    std::vector<ProfileRow> rows;
    for (const auto& [key, sums] : sums_) {
      const auto& [layer, place, head] = key;
      rows.push_back({layer == kBehind ? -1 : layer, names_[static_cast<size_t>(place)], head, sums.Metrics()});
    }
    return rows;
  }

 private:
  static constexpr int kBehind = 1 << 30;
  std::vector<std::string> names_;  // in the order of a layer, which is that of the first
  std::map<Key, ErrorSums> sums_;
};

// Adds the errors of windows.
class Comparison {
 public:
  Comparison(Engine& configured, const ModelFiles& files, bool split, bool heads)
      : config_(configured.config()),
        sc_(configured.options().sc),
        files_(files),
        plan_(sc_, config_),
        runner_(configured.backend(), configured.options().placement->layers.front()),
        split_(split),
        heads_(heads) {}

  void Add(const WindowOperands& exact, const WindowOperands& configured) {
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
      for (const BlockLinear& linear : config_.architecture->linears) {
        if (linear.group == BlockGroup::kO) AddAttention(layer, exact, configured);
        const WeightSource source = files_.weights->Matrix(LayerTensorName(layer, linear.tensor),
                                                           SizeOf(config_, linear.out), SizeOf(config_, linear.in));
        AddLinear(layer, OperatorOf(linear.id), source, GroupName(linear.group), exact, configured);
      }
    }
    if (!sc_.sc_lm_head) return;
    const std::string name(config_.tie_word_embeddings ? EmbeddingTensor(files_) : std::string(kLmHeadName));
    const WeightSource source = files_.weights->Matrix(name, config_.vocab_size, config_.hidden_size);
    AddLinear(-1, ScOperatorId::kLmHead, source, "lm_head", exact, configured);
  }

  std::vector<ProfileRow> Rows() const { return errors_.Rows(); }

 private:
  void AddLinear(int layer, ScOperatorId id, const WeightSource& source, std::string_view group,
                 const WindowOperands& exact, const WindowOperands& configured) {
    const std::pair<int, std::string> at{layer, std::string(group)};
    const HostMatrix& x = exact.inputs.at(at);
    const LinearSpec spec = plan_.Linear(layer, id);
    const HostMatrix y = runner_.Linear(source, {}, x);
    const HostMatrix v = runner_.Linear(source, spec, configured.inputs.at(at));
    HostMatrix z;
    if (split_) z = runner_.Linear(source, QuantizedSpec(spec), x);
    errors_.At(layer, std::string(ScOperatorName(id)), -1)
        .Add(y.values.data(), split_ ? z.values.data() : nullptr, v.values.data(), y.rows, y.cols);
  }

  void AddAttention(int layer, const WindowOperands& exact, const WindowOperands& configured) {
    KvCacheSpec::Products products;
    if (sc_.attention != AttentionMode::kExact) products = plan_.Attention(layer);
    const AttentionParts parts(runner_, config_, sc_, std::move(products));
    parts.Run(exact.attention.at(layer), configured.attention.at(layer), split_,
              [&](ScOperatorId id, int64_t head, const ProductParts& one, const auto& visible) {
                const std::string name(ScOperatorName(id));
                for (const int where : {-1, static_cast<int>(head)}) {
                  if (where >= 0 && !heads_) continue;
                  ErrorSums& sums = errors_.At(layer, name, where);
                  for (int64_t row = 0; row < one.y.rows; ++row) {
                    const AttentionParts::Visible seen = visible(row);
                    sums.Add(one.y.row(row) + seen.first, split_ ? one.z.row(row) + seen.first : nullptr,
                             one.v.row(row) + seen.first, 1, seen.count);
                  }
                }
              });
  }

  const DecoderConfig& config_;
  const ScModelConfig& sc_;
  const ModelFiles& files_;
  ScPlan plan_;
  ProductRunner runner_;
  bool split_, heads_;
  Errors errors_;
};

}  // namespace

void CheckProfile(const DecoderConfig& config, size_t tokens, const ProfileOptions& options) {
  if (config.HasExperts()) throw InvalidInput("profile: a model with experts shows no operands of its linears");
  if (options.ctx < 3 || options.max_windows < 1) {
    throw InvalidInput("--ctx and --max-windows: allowed are at least 3 and 1");
  }
  const int64_t windows = static_cast<int64_t>(tokens) / options.ctx;
  if (windows < options.max_windows) {
    throw InvalidInput("--max-windows " + std::to_string(options.max_windows) + ": the text has " +
                       std::to_string(windows) + " windows of " + std::to_string(options.ctx) + " tokens");
  }
}

ProfileResult ProfileModel(Engine& exact, Engine& configured, const ModelFiles& files, std::span<const int32_t> ids,
                           const ProfileOptions& options) {
  CheckProfile(configured.config(), ids.size(), options);
  CheckDevice(exact);
  CheckDevice(configured);
  const bool with_head = configured.options().sc.sc_lm_head;
  ScCostCollector cost(configured, options.cost, options.sink);
  OperandCapture exact_operands(with_head, nullptr);
  OperandCapture configured_operands(with_head, &cost.lengths());
  Comparison comparison(configured, files, !options.propagated, options.heads);
  Observation observation(configured.backend());
  Backend& backend = configured.backend();
  const int64_t vocab_size = configured.config().vocab_size;
  KlComparison divergence(backend, vocab_size);
  Buffer base;  // exact logits of a window, and how many rows of them are there and were compared
  int64_t base_rows = 0, compared = 0;
  const auto base_part = [&](int64_t first, const TensorView& logits) {
    if (base.data() == nullptr) base = backend.Allocate(logits.device, ProfileBaseRows(options) * vocab_size * 4);
    const TensorView all = MakeView(base.data(), DType::kF32, logits.device, ProfileBaseRows(options), vocab_size);
    return Slice(all, 0, first, logits.dim(0));
  };
  WindowOperands of_exact;
  ProfileResult result;

  PerplexityOptions of_base;
  of_base.ctx = options.ctx;
  of_base.max_windows = 1;
  of_base.on_logits = [&](const TensorView& logits, std::span<const int32_t>) {
    exact_operands.OnLogitsRead();
    backend.Copy(base_part(base_rows, logits), logits);
    base_rows += logits.dim(0);
  };
  PerplexityOptions windows;
  windows.ctx = options.ctx;
  windows.max_windows = options.max_windows;
  windows.on_begin = [&](std::span<const int32_t> window) {
    if (options.on_progress) options.on_progress(result.perplexity.windows, options.max_windows);
    base_rows = 0;
    compared = 0;
    observation.Show(&exact_operands);
    EvaluatePerplexity(exact, window, of_base);
    observation.Show(nullptr);
    of_exact = exact_operands.Take();
    if (!options.propagated) comparison.Add(of_exact, of_exact);
    observation.Show(&configured_operands);
  };
  windows.on_logits = [&](const TensorView& logits, std::span<const int32_t> targets) {
    configured_operands.OnLogitsRead();
    divergence.Add(base_part(compared, logits), logits, targets);
    compared += logits.dim(0);
  };
  windows.on_window = [&](const PerplexityResult& so_far, int64_t) {
    observation.Show(nullptr);
    result.perplexity = so_far;
    const WindowOperands own = configured_operands.Take();
    if (options.propagated) comparison.Add(of_exact, own);
  };
  result.perplexity = EvaluatePerplexity(configured, ids, windows);
  if (options.on_progress) options.on_progress(options.max_windows, options.max_windows);
  result.config = configured.sc_description();
  result.rows = comparison.Rows();
  result.kl = divergence.Summary();
  result.cost = cost.Cost();
  if (options.on_cost) options.on_cost(cost);
  return result;
}

std::vector<size_t> ProfileResult::Worst(size_t count) const {
  std::vector<size_t> order;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].head < 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rows[a].error.mse > rows[b].error.mse; });
  order.resize(std::min(order.size(), count));
  return order;
}

double ProfileResult::MseShare(size_t row) const {
  double sum = 0;
  for (const ProfileRow& one : rows) sum += one.head < 0 ? one.error.mse : 0.0;
  return sum == 0 ? 0.0 : rows[row].error.mse / sum;
}

Json ProfileRowJson(const ProfileRow& row) {
  const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  const ErrorMetrics& e = row.error;
  return {{"layer", row.layer < 0 ? Json(nullptr) : Json(row.layer)},
          {"op", row.op},
          {"head", row.head < 0 ? Json(nullptr) : Json(row.head)},
          {"n", e.n},
          {"mse", e.mse},
          {"mse_quant", or_null(e.mse_quant)},
          {"mse_stream", or_null(e.mse_stream)},
          {"cross", or_null(e.cross)},
          {"bias", e.bias},
          {"max_abs", e.max_abs},
          {"sqnr_db", or_null(e.sqnr_db)},
          {"rel_frobenius", or_null(e.rel_frobenius)},
          {"cosine", or_null(e.cosine)},
          {"sigma_p50", or_null(e.sigma_p50)},
          {"sigma_p90", or_null(e.sigma_p90)},
          {"sigma_p99", or_null(e.sigma_p99)}};
}

}  // namespace stoch
