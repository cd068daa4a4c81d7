// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/weights.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/config/decoder_tensors.h"
#include "models/sc_plan.h"

namespace stoch {
namespace {

// Whether rows of a matrix have scales of their own.
bool ScalesByRow(const LinearSpec& spec) {
  return spec.sc == nullptr || (spec.sc->config.granularity == ScGranularity::kPerRow && spec.sc->config.group_b == 1);
}

// Row scopes of the weight itself must be its own, or stacking would change what they cover.
bool MayStack(const LinearSpec& a, const LinearSpec& b) {
  return a.precision == b.precision && a.sc == b.sc && a.extras == nullptr && b.extras == nullptr && ScalesByRow(a);
}

int64_t SourceBytes(const WeightSource& source) {
  // Random tensors have no file; count them as the fp16 numbers they are.
  const int64_t element = source.generated() ? 2 : static_cast<int64_t>(DTypeSize(source.dtype));
  return source.rows * source.cols * element;
}

class WeightLoader {
 public:
  WeightLoader(Backend& backend, const ModelFiles& files, Precision precision, const ScModelConfig& sc,
               const DecoderPlacement& placement, const ProgressFn& progress)
      : backend_(backend), files_(files), precision_(precision), progress_(progress) {
    if (precision == Precision::kSc) plan_.emplace(sc, files.config);
    for (const DecoderTensor& tensor : DecoderTensors(files.config)) {
      if (tensor.layer < 0 ? !placement.has_ends() : !placement.is_local(tensor.layer)) continue;
      const int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
      const std::string name = tensor.name == kEmbeddingName ? EmbeddingTensor(files) : tensor.name;
      progress_state_.total_bytes += SourceBytes(files.weights->Matrix(name, rows, tensor.shape.back()));
    }
  }

  // Of an operator of a layer, -1 for the LM head, and of one of its experts. The same operators are one.
  LinearSpec Spec(int layer, ScOperatorId id, int64_t expert = -1) {
    if (!plan_) return id == ScOperatorId::kLmHead ? HeadOf(precision_) : LinearSpec{precision_, nullptr};
    LinearSpec spec = plan_->Linear(layer, id, expert);
    if (spec.sc != nullptr && std::find(operators_.begin(), operators_.end(), spec.sc) == operators_.end()) {
      operators_.push_back(spec.sc);
    }
    return spec;
  }

  // The wanted rows of `parts`, as few matrices as their specs allow. None where nothing is wanted.
  LinearGroup Group(Device device, std::span<const DeviceMatrix> parts, int layer, int64_t expert = -1) {
    LinearGroup group;
    if (parts.front().wanted.empty()) return group;
    for (size_t begin = 0; begin < parts.size();) {
      const LinearSpec spec = Spec(layer, parts[begin].id, expert);
      size_t end = begin + 1;
      while (end < parts.size() && MayStack(spec, Spec(layer, parts[end].id, expert))) ++end;
      group.weights.push_back(Linear(device, parts.subspan(begin, end - begin), spec));
      begin = end;
    }
    return group;
  }

  // What devices have copies of is reported once, of the first one.
  std::unique_ptr<LinearWeight> Linear(Device device, std::span<const DeviceMatrix> parts, const LinearSpec& spec,
                                       bool is_first = true) {
    if (spec.sc != nullptr) CheckAccumulator(parts[0], *spec.sc);
    std::vector<WeightSource> sources;
    for (const DeviceMatrix& part : parts) {
      const WeightSource whole = files_.weights->Matrix(part.tensor, part.rows, part.cols);
      sources.push_back(part.wanted.size() == part.rows ? whole : Rows(whole, part.wanted));
    }
    std::unique_ptr<LinearWeight> weight;
    if (ScalesByRow(spec) || parts[0].wanted.size() == parts[0].rows) {
      weight = backend_.MakeLinear(device, sources, FromRow(spec, parts[0].wanted.begin));
    } else {
      STOCH_CHECK(parts.size() == 1);
      const WeightSource whole = files_.weights->Matrix(parts[0].tensor, parts[0].rows, parts[0].cols);
      weight = backend_.MakeLinearRows(device, whole, spec, parts[0].wanted.begin, parts[0].wanted.size());
    }
    // What was copied into the backend's own layout needs its file no more, once the last device has its rows.
    for (size_t i = 0; i < parts.size(); ++i) {
      if (weight->bytes() > 0 && parts[i].wanted.end == parts[i].rows) files_.weights->Release(parts[i].tensor);
      if (is_first) Report(sources[i]);
    }
    return weight;
  }

  // A vector for `device`; every device that shares a layer has its own.
  Buffer Vector(Device device, const std::string& tensor, int64_t cols, bool is_first) {
    const WeightSource source = files_.weights->Matrix(tensor, 1, cols);
    Buffer buffer = backend_.MakeVector(device, source);
    if (is_first) Report(source);
    return buffer;
  }

  // Elements `range` of a vector.
  Buffer Elements(Device device, const std::string& tensor, int64_t cols, const IndexRange& range) {
    WeightSource column = files_.weights->Matrix(tensor, 1, cols);
    std::swap(column.rows, column.cols);
    WeightSource source = SliceRows(column, range.begin, range.size());
    std::swap(source.rows, source.cols);
    Buffer buffer = backend_.MakeVector(device, source);
    Report(source);
    return buffer;
  }

  // What rebalances q and k of the wanted KV heads.
  Buffer QkSmooth(Device device, int layer, const IndexRange& kv_heads, int64_t head_dim) {
    const std::vector<float> all = plan_ ? plan_->QkSmooth(layer) : std::vector<float>{};
    if (all.empty() || kv_heads.empty()) return {};
    Buffer buffer = backend_.Allocate(device, kv_heads.size() * head_dim * 4);
    backend_.CopyFromHost(MakeView(buffer.data(), DType::kF32, device, kv_heads.size() * head_dim),
                          all.data() + kv_heads.begin * head_dim);
    return buffer;
  }

  Backend& backend() { return backend_; }

  // Whether what is loaded counts as progress: the copies of other stripes of positions do not.
  void CountProgress(bool counts) { counts_ = counts; }

  void Report(const WeightSource& source) {
    if (!counts_) return;
    progress_state_.done_bytes += SourceBytes(source);
    progress_state_.tensor = source.name;
    if (progress_) progress_(progress_state_);
  }

 private:
  // Errors about a slice say which rows it counts from.
  static WeightSource Rows(const WeightSource& whole, const IndexRange& range) {
    WeightSource slice = SliceRows(whole, range.begin, range.size());
    slice.name += " from row " + std::to_string(range.begin);
    return slice;
  }

  // The same for a matrix whose first row is output feature `first`.
  static LinearSpec FromRow(LinearSpec spec, int64_t first) {
    if (spec.extras == nullptr || first == 0) return spec;
    auto extras = std::make_shared<ScExtras>(*spec.extras);
    extras->site.first_output = first;
    spec.extras = extras;
    return spec;
  }

  static void CheckAccumulator(const DeviceMatrix& part, const ScOperator& op) {
    const int64_t depth = op.config.chunk_d > 0 ? std::min(op.config.chunk_d, part.cols) : part.cols;
    if (depth * op.max_count < (int64_t{1} << 31)) return;
    throw InvalidInput(
        part.tensor + " has " + std::to_string(depth) + " products of up to " + std::to_string(op.max_count) +
        " counts in one int32 sum; use chunk_d or a shorter stoc_len in " + std::string(ScOperatorName(part.id)));
  }

  Backend& backend_;
  const ModelFiles& files_;
  Precision precision_;
  const ProgressFn& progress_;
  LoadProgress progress_state_;
  bool counts_ = true;
  std::optional<ScPlan> plan_;
  std::vector<ScOperatorPtr> operators_;  // alive while layers are loaded, so that they are shared
};

// Loads what one device has of one layer, as the architecture table lists it.
class LayerLoader {
 public:
  LayerLoader(WeightLoader& loader, const DecoderConfig& config, int64_t layer, const DecoderShard& shard,
              bool is_first)
      : loader_(loader), config_(config), layer_(layer), shard_(shard), is_first_(is_first) {}

  DecoderLayerShard Load() {
    DecoderLayerShard weights;
    weights.qk_smooth = loader_.QkSmooth(shard_.device, static_cast<int>(layer_), shard_.kv_heads, config_.head_dim);
    for (const BlockGroup group : kBlockGroups) {
      const auto index = static_cast<size_t>(group);
      for (const BlockVector& vector : config_.architecture->vectors) {
        if (vector.before != group) continue;
        weights.vectors[static_cast<size_t>(vector.id)] = loader_.Vector(
            shard_.device, LayerTensorName(layer_, vector.tensor), SizeOf(config_, vector.length), is_first_);
      }
      const auto linears = LinearsOf(*config_.architecture, group);
      if (config_.HasExperts(layer_) && !linears.front().expert.empty()) {
        if (weights.router == nullptr) weights.router = LoadRouter();
        weights.experts[index] = LoadExperts(linears);
        continue;
      }
      weights.groups[index] = loader_.Group(shard_.device, MatricesOf(linears, -1), static_cast<int>(layer_));
      if (config_.HasBias(group)) weights.biases[index] = LoadBias(linears);
    }
    return weights;
  }

 private:
  std::vector<DeviceMatrix> MatricesOf(std::span<const BlockLinear> linears, int64_t expert) const {
    return BlockMatrices(config_, shard_, layer_, linears, expert);
  }

  ExpertGroup LoadExperts(std::span<const BlockLinear> linears) {
    std::vector<std::vector<std::unique_ptr<LinearWeight>>> stacks;  // by stack, then by expert
    for (int64_t expert = 0; expert < config_.num_experts; ++expert) {
      LinearGroup group = loader_.Group(shard_.device, MatricesOf(linears, expert), static_cast<int>(layer_), expert);
      stacks.resize(group.weights.size());
      for (size_t i = 0; i < stacks.size(); ++i) stacks[i].push_back(std::move(group.weights[i]));
    }
    ExpertGroup experts;
    for (auto& stack : stacks) experts.weights.push_back(loader_.backend().MakeExperts(std::move(stack)));
    return experts;
  }

  std::unique_ptr<LinearWeight> LoadRouter() {
    const DeviceMatrix router = RouterMatrix(config_, layer_);
    return loader_.Linear(shard_.device, {&router, 1}, {Precision::kFp32, nullptr}, is_first_);
  }

  Buffer LoadBias(std::span<const BlockLinear> linears) {
    const int64_t total = BiasSize(config_, shard_, linears);
    if (total == 0) return {};
    Backend& backend = loader_.backend();
    Buffer all = backend.Allocate(shard_.device, total * 4);
    const TensorView view = MakeView(all.data(), DType::kF32, shard_.device, total);
    int64_t begin = 0;
    for (const BlockLinear& linear : linears) {
      const IndexRange range = RangeOf(config_, shard_, linear.out);
      if (range.empty()) continue;
      const Buffer part = loader_.Elements(shard_.device, LayerTensorName(layer_, linear.tensor, "bias"),
                                           SizeOf(config_, linear.out), range);
      backend.Copy(Slice(view, 0, begin, range.size()),
                   MakeView(part.data(), DType::kF32, shard_.device, range.size()));
      begin += range.size();
    }
    backend.Synchronize(shard_.device);  // before `part` is given back
    return all;
  }

  WeightLoader& loader_;
  const DecoderConfig& config_;
  int64_t layer_;
  const DecoderShard& shard_;
  bool is_first_;
};

void AddBytes(DecoderWeights& weights, const DecoderConfig& config) {
  for (const DecoderLayerWeights& layer : weights.layers) {
    for (const DecoderLayerShard& shard : layer.shards) {
      for (const LinearGroup& group : shard.groups) {
        for (const auto& weight : group.weights) {
          weights.decoder_bytes += weight->bytes();
          weights.stream_bytes += weight->stream_bytes();
        }
      }
      for (const ExpertGroup& group : shard.experts) {
        for (const auto& experts : group.weights) {
          weights.decoder_bytes += experts->bytes();
          weights.stream_bytes += experts->stream_bytes() * config.num_experts_per_tok;
        }
      }
      if (shard.router != nullptr) {
        weights.bytes += shard.router->bytes();
        weights.stream_bytes += shard.router->stream_bytes();
      }
      for (const Buffer& vector : shard.vectors) weights.bytes += static_cast<int64_t>(vector.bytes());
      for (const Buffer& bias : shard.biases) weights.bytes += static_cast<int64_t>(bias.bytes());
      weights.bytes += static_cast<int64_t>(shard.qk_smooth.bytes());
    }
  }
  for (const DecoderHeadShard& shard : weights.head) {
    weights.bytes += static_cast<int64_t>(shard.final_norm.bytes());
    if (shard.lm_head == nullptr) continue;
    weights.bytes += shard.lm_head->bytes();
    weights.stream_bytes += shard.lm_head->stream_bytes();
  }
  weights.bytes += weights.decoder_bytes;
  if (weights.embedding != nullptr) weights.bytes += weights.embedding->bytes();
  for (const auto& embedding : weights.more_embeddings) weights.bytes += embedding->bytes();
}

}  // namespace

std::string EmbeddingTensor(const ModelFiles& files) {
  const bool as_head = files.config.tie_word_embeddings && !files.weights->Has(kEmbeddingName);
  return std::string(as_head ? kLmHeadName : kEmbeddingName);
}

std::string HeadTensor(const ModelFiles& files) {
  return files.config.tie_word_embeddings ? EmbeddingTensor(files) : std::string(kLmHeadName);
}

bool SharesHead(const DecoderConfig& config, bool divided, bool is_sc_head) {
  return config.tie_word_embeddings && !divided && !is_sc_head;
}

DecoderPlacement SingleDevice(const DecoderConfig& config, Device device) {
  return {device, std::vector<Device>(static_cast<size_t>(config.num_hidden_layers), device), device};
}

DecoderPlacement RowSplit(const DecoderConfig& config, std::span<const Device> devices) {
  STOCH_CHECK(!devices.empty());
  DecoderPlacement placement = SingleDevice(config, devices.front());
  if (devices.size() > 1) placement.rows.assign(devices.begin(), devices.end());
  return placement;
}

DecoderPlacement SequenceSplit(const DecoderConfig& config, std::span<const Device> devices, int stripes) {
  STOCH_CHECK(stripes > 1 && IsStripeCount(stripes) && devices.size() % static_cast<size_t>(stripes) == 0);
  DecoderPlacement placement = SingleDevice(config, devices.front());
  const size_t sharers = devices.size() / static_cast<size_t>(stripes);
  for (size_t first = 0; first < devices.size(); first += sharers) {
    const std::span<const Device> group = devices.subspan(first, sharers);
    placement.stripes.emplace_back(group.begin(), group.end());
  }
  return placement;
}

std::vector<DecoderShard> ShardsOf(const DecoderConfig& config, const DecoderPlacement& placement,
                                   const Device& device) {
  if (!placement.stripes.empty()) return DealPositions(config, placement.stripes);
  if (!placement.rows.empty()) return DivideRows(config, placement.rows);
  return DivideRows(config, {&device, 1});
}

int64_t LanesOf(const DecoderPlacement& placement) {
  if (!placement.stripes.empty()) return 1;
  std::set<Device, DeviceOrder> devices;
  for (size_t i = 0; i < placement.layers.size(); ++i) {
    if (placement.is_local(static_cast<int64_t>(i))) devices.insert(placement.layers[i]);
  }
  if (placement.has_ends()) devices.insert({placement.embedding, placement.head});
  const int64_t stages = placement.rows.empty() ? static_cast<int64_t>(devices.size()) : 1;
  return std::min(stages * placement.ranks, kMaxLanes);
}

namespace {

// Embedding, final norm and LM head: the heads before the layers, the norm after them.
class EndsLoader {
 public:
  EndsLoader(WeightLoader& loader, const ModelFiles& files, const DecoderPlacement& placement)
      : loader_(loader),
        files_(files),
        placement_(placement),
        shards_(ShardsOf(files.config, placement, placement.head)) {}

  void LoadMatrices(DecoderWeights& weights) {
    const DecoderConfig& config = files_.config;
    const std::string head = HeadTensor(files_);
    const LinearSpec head_spec = loader_.Spec(-1, ScOperatorId::kLmHead);
    for (const DecoderShard& shard : shards_) {
      const DeviceMatrix matrix{ScOperatorId::kLmHead, head, config.vocab_size, config.hidden_size, shard.vocab};
      LinearGroup group = loader_.Group(shard.device, {&matrix, 1}, -1);
      weights.head.push_back({Buffer(), group.weights.empty() ? nullptr : std::move(group.weights.front())});
    }
    const auto& stripes = placement_.stripes;
    const bool divided = !placement_.rows.empty() || (!stripes.empty() && stripes[0].size() > 1);
    const bool shared =
        SharesHead(config, divided, head_spec.precision == Precision::kSc) && placement_.head == placement_.embedding;
    const WeightSource table = files_.weights->Matrix(EmbeddingTensor(files_), config.vocab_size, config.hidden_size);
    Backend& backend = loader_.backend();
    weights.embedding =
        backend.MakeEmbedding(placement_.embedding, table, shared ? weights.head.front().lm_head.get() : nullptr);
    for (size_t i = 1; i < stripes.size(); ++i) {
      weights.more_embeddings.push_back(backend.MakeEmbedding(stripes[i].front(), table, nullptr));
    }
    if (!config.tie_word_embeddings) loader_.Report(table);
  }

  void LoadNorms(DecoderWeights& weights) {
    for (size_t i = 0; i < shards_.size(); ++i) {
      const int64_t hidden = files_.config.hidden_size;
      Buffer& norm = weights.head[i].final_norm;
      norm = loader_.Vector(shards_[i].device, std::string(kFinalNormName), hidden, i == 0);
      if (files_.config.logits_scaling == 1) continue;
      // Logits are linear in it.
      const TensorView view = MakeView(norm.data(), DType::kF32, shards_[i].device, hidden);
      std::vector<float> values(static_cast<size_t>(hidden));
      loader_.backend().CopyToHost(values.data(), view);
      for (float& value : values) value = value / static_cast<float>(files_.config.logits_scaling);
      loader_.backend().CopyFromHost(view, values.data());
    }
  }

 private:
  WeightLoader& loader_;
  const ModelFiles& files_;
  const DecoderPlacement& placement_;
  std::vector<DecoderShard> shards_;
};

}  // namespace

DecoderWeights LoadDecoderWeights(Backend& backend, const ModelFiles& files, Precision precision,
                                  const ScModelConfig& sc, const DecoderPlacement& placement,
                                  const ProgressFn& progress) {
  const DecoderConfig& config = files.config;
  STOCH_CHECK(static_cast<int64_t>(placement.layers.size()) == config.num_hidden_layers);
  WeightLoader loader(backend, files, precision, sc, placement, progress);
  DecoderWeights weights;
  EndsLoader ends(loader, files, placement);
  if (placement.has_ends()) ends.LoadMatrices(weights);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    DecoderLayerWeights& layer = weights.layers.emplace_back();
    if (!placement.is_local(i)) continue;
    for (const DecoderShard& shard : ShardsOf(config, placement, placement.layers[static_cast<size_t>(i)])) {
      loader.CountProgress(shard.stripe.index == 0);
      layer.shards.push_back(LayerLoader(loader, config, i, shard, layer.shards.empty()).Load());
    }
  }
  loader.CountProgress(true);
  if (placement.has_ends()) ends.LoadNorms(weights);
  backend.EndLoading();
  AddBytes(weights, config);
  return weights;
}

}  // namespace stoch
