#include "models/decoder/weights.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/config/llama_tensors.h"

namespace stoch {
namespace {

// One matrix of a group: which operator it is, its tensor, its output features, and those that are wanted.
struct Part {
  ScOperatorId id;
  std::string tensor;
  int64_t rows;
  IndexRange wanted;
};

// Whether rows of a matrix have scales of their own.
bool ScalesByRow(const LinearSpec& spec) {
  return spec.sc == nullptr || (spec.sc->config.granularity == ScGranularity::kPerRow && spec.sc->config.group_b == 1);
}

// Row scopes of the weight itself must be its own, or stacking would change what they cover.
bool MayStack(const LinearSpec& a, const LinearSpec& b) {
  return a.precision == b.precision && a.sc == b.sc && ScalesByRow(a);
}

int64_t SourceBytes(const WeightSource& source) {
  // Random tensors have no file; count them as the fp16 numbers they are.
  const int64_t element = source.host == nullptr ? 2 : static_cast<int64_t>(DTypeSize(source.dtype));
  return source.rows * source.cols * element;
}

class WeightLoader {
 public:
  WeightLoader(Backend& backend, const ModelFiles& files, Precision precision, const ScModelConfig& sc,
               const ProgressFn& progress)
      : backend_(backend), files_(files), precision_(precision), progress_(progress) {
    for (const LlamaTensor& tensor : LlamaTensors(files.config)) {
      const int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
      const std::string name = tensor.name == kEmbeddingName ? EmbeddingTensor(files) : tensor.name;
      progress_state_.total_bytes += SourceBytes(files.weights->Matrix(name, rows, tensor.shape.back()));
    }
    if (precision != Precision::kSc) return;
    for (int i = 0; i < kNumScOperators; ++i) {
      const auto id = static_cast<ScOperatorId>(i);
      const bool linear = id != ScOperatorId::kQk && id != ScOperatorId::kAv;
      if (linear && (id != ScOperatorId::kLmHead || sc.sc_lm_head)) {
        operators_[static_cast<size_t>(i)] = MakeScOperator(sc.at(id));
      }
    }
  }

  LinearSpec Spec(ScOperatorId id) const {
    const ScOperatorPtr& op = operators_[static_cast<size_t>(id)];
    if (op != nullptr) return {Precision::kSc, op};
    return {precision_ == Precision::kSc ? Precision::kFp32 : precision_, nullptr};
  }

  // What: the wanted rows of `parts`, as few matrices as their specs allow. None where nothing is wanted.
  LinearGroup Group(Device device, std::span<const Part> parts, int64_t cols) {
    LinearGroup group;
    if (parts.front().wanted.empty()) return group;
    for (size_t begin = 0; begin < parts.size();) {
      const LinearSpec spec = Spec(parts[begin].id);
      size_t end = begin + 1;
      while (end < parts.size() && MayStack(spec, Spec(parts[end].id))) ++end;
      group.weights.push_back(Linear(device, parts.subspan(begin, end - begin), cols, spec));
      begin = end;
    }
    return group;
  }

  std::unique_ptr<LinearWeight> Linear(Device device, std::span<const Part> parts, int64_t cols,
                                       const LinearSpec& spec) {
    if (spec.sc != nullptr) CheckAccumulator(parts[0], cols, *spec.sc);
    std::vector<WeightSource> sources;
    for (const Part& part : parts) {
      const WeightSource whole = files_.weights->Matrix(part.tensor, part.rows, cols);
      sources.push_back(part.wanted.size() == part.rows ? whole : Rows(whole, part.wanted));
    }
    std::unique_ptr<LinearWeight> weight;
    if (ScalesByRow(spec) || parts[0].wanted.size() == parts[0].rows) {
      weight = backend_.MakeLinear(device, sources, spec);
    } else {
      STOCH_CHECK(parts.size() == 1);
      const WeightSource whole = files_.weights->Matrix(parts[0].tensor, parts[0].rows, cols);
      weight = backend_.MakeLinearRows(device, whole, spec, parts[0].wanted.begin, parts[0].wanted.size());
    }
    // What was copied into the backend's own layout needs its file no more, once the last device has its rows.
    for (size_t i = 0; i < parts.size(); ++i) {
      if (weight->bytes() > 0 && parts[i].wanted.end == parts[i].rows) files_.weights->Release(parts[i].tensor);
      Report(sources[i]);
    }
    return weight;
  }

  // What: a vector for `device`; every device that shares a layer has its own.
  Buffer Vector(Device device, const std::string& tensor, int64_t cols, bool is_first) {
    const WeightSource source = files_.weights->Matrix(tensor, 1, cols);
    Buffer buffer = backend_.MakeVector(device, source);
    if (is_first) Report(source);
    return buffer;
  }

  void Report(const WeightSource& source) {
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

  static void CheckAccumulator(const Part& part, int64_t cols, const ScOperator& op) {
    const int64_t depth = op.config.chunk_d > 0 ? std::min(op.config.chunk_d, cols) : cols;
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
  std::array<ScOperatorPtr, kNumScOperators> operators_;
};

IndexRange HeadRows(const IndexRange& heads, int64_t head_dim) {
  return {heads.begin * head_dim, heads.end * head_dim};
}

DecoderLayerShard LoadLayer(WeightLoader& loader, const LlamaConfig& config, int64_t index, const DecoderShard& shard,
                            bool is_first) {
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = config.num_attention_heads * config.head_dim;
  const int64_t kv_rows = config.num_key_value_heads * config.head_dim;
  const IndexRange q = HeadRows(shard.heads, config.head_dim);
  const IndexRange kv = HeadRows(shard.kv_heads, config.head_dim);
  const auto name = [index](std::string_view part) { return LayerTensorName(index, part); };
  using enum ScOperatorId;
  const Part qkv[] = {{kQProj, name("self_attn.q_proj"), q_rows, q},
                      {kKProj, name("self_attn.k_proj"), kv_rows, kv},
                      {kVProj, name("self_attn.v_proj"), kv_rows, kv}};
  const Part o[] = {{kOProj, name("self_attn.o_proj"), hidden, shard.hidden}};
  const Part gate_up[] = {{kGateProj, name("mlp.gate_proj"), config.intermediate_size, shard.intermediate},
                          {kUpProj, name("mlp.up_proj"), config.intermediate_size, shard.intermediate}};
  const Part down[] = {{kDownProj, name("mlp.down_proj"), hidden, shard.hidden}};

  DecoderLayerShard layer;
  layer.input_norm = loader.Vector(shard.device, name("input_layernorm"), hidden, is_first);
  layer.qkv = loader.Group(shard.device, qkv, hidden);
  layer.o = loader.Group(shard.device, o, q_rows);
  layer.post_attention_norm = loader.Vector(shard.device, name("post_attention_layernorm"), hidden, is_first);
  layer.gate_up = loader.Group(shard.device, gate_up, hidden);
  layer.down = loader.Group(shard.device, down, config.intermediate_size);
  return layer;
}

void AddBytes(DecoderWeights& weights) {
  for (const DecoderLayerWeights& layer : weights.layers) {
    for (const DecoderLayerShard& shard : layer.shards) {
      for (const LinearGroup* group : {&shard.qkv, &shard.o, &shard.gate_up, &shard.down}) {
        for (const auto& weight : group->weights) {
          weights.decoder_bytes += weight->bytes();
          weights.stream_bytes += weight->stream_bytes();
        }
      }
      weights.bytes += static_cast<int64_t>(shard.input_norm.bytes() + shard.post_attention_norm.bytes());
    }
  }
  for (const DecoderHeadShard& shard : weights.head) {
    weights.bytes += static_cast<int64_t>(shard.final_norm.bytes());
    if (shard.lm_head == nullptr) continue;
    weights.bytes += shard.lm_head->bytes();
    weights.stream_bytes += shard.lm_head->stream_bytes();
  }
  weights.bytes += weights.decoder_bytes + weights.embedding->bytes();
}

// The devices that share what one device of a layer split would hold.
std::vector<DecoderShard> ShardsOn(const LlamaConfig& config, const DecoderPlacement& placement, const Device& device) {
  if (placement.rows.empty()) return DivideRows(config, {&device, 1});
  return DivideRows(config, placement.rows);
}

}  // namespace

std::string EmbeddingTensor(const ModelFiles& files) {
  const bool as_head = files.config.tie_word_embeddings && !files.weights->Has(kEmbeddingName);
  return std::string(as_head ? kLmHeadName : kEmbeddingName);
}

DecoderPlacement SingleDevice(const LlamaConfig& config, Device device) {
  return {device, std::vector<Device>(static_cast<size_t>(config.num_hidden_layers), device), device};
}

DecoderPlacement RowSplit(const LlamaConfig& config, std::span<const Device> devices) {
  STOCH_CHECK(!devices.empty());
  DecoderPlacement placement = SingleDevice(config, devices.front());
  if (devices.size() > 1) placement.rows.assign(devices.begin(), devices.end());
  return placement;
}

int64_t LanesOf(const DecoderPlacement& placement) {
  constexpr size_t kMaxLanes = 8;
  if (!placement.rows.empty()) return 1;
  std::set<Device, DeviceOrder> devices(placement.layers.begin(), placement.layers.end());
  devices.insert({placement.embedding, placement.head});
  return static_cast<int64_t>(std::min(devices.size(), kMaxLanes));
}

DecoderWeights LoadDecoderWeights(Backend& backend, const ModelFiles& files, Precision precision,
                                  const ScModelConfig& sc, const DecoderPlacement& placement,
                                  const ProgressFn& progress) {
  const LlamaConfig& config = files.config;
  STOCH_CHECK(static_cast<int64_t>(placement.layers.size()) == config.num_hidden_layers);
  WeightLoader loader(backend, files, precision, sc, progress);

  const bool tied = config.tie_word_embeddings;
  const std::string embedding = EmbeddingTensor(files);
  const std::string head = tied ? embedding : std::string(kLmHeadName);

  DecoderWeights weights;
  const std::vector<DecoderShard> head_shards = ShardsOn(config, placement, placement.head);
  const LinearSpec head_spec = loader.Spec(ScOperatorId::kLmHead);
  for (const DecoderShard& shard : head_shards) {
    const Part part[] = {{ScOperatorId::kLmHead, head, config.vocab_size, shard.vocab}};
    LinearGroup group = loader.Group(shard.device, part, config.hidden_size);
    weights.head.push_back({Buffer(), group.weights.empty() ? nullptr : std::move(group.weights.front())});
  }
  const bool shared =
      tied && head_spec.precision != Precision::kSc && placement.head == placement.embedding && placement.rows.empty();
  const WeightSource table = files.weights->Matrix(embedding, config.vocab_size, config.hidden_size);
  weights.embedding =
      backend.MakeEmbedding(placement.embedding, table, shared ? weights.head.front().lm_head.get() : nullptr);
  if (!tied) loader.Report(table);

  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    DecoderLayerWeights& layer = weights.layers.emplace_back();
    for (const DecoderShard& shard : ShardsOn(config, placement, placement.layers[static_cast<size_t>(i)])) {
      layer.shards.push_back(LoadLayer(loader, config, i, shard, layer.shards.empty()));
    }
  }
  for (size_t i = 0; i < head_shards.size(); ++i) {
    weights.head[i].final_norm =
        loader.Vector(head_shards[i].device, std::string(kFinalNormName), config.hidden_size, i == 0);
  }
  backend.EndLoading();
  AddBytes(weights);
  return weights;
}

}  // namespace stoch
