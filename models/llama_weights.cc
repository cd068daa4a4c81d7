#include "models/llama_weights.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/llama_tensors.h"

namespace stoch {
namespace {

// One matrix of a group: which operator it is, its tensor, its output features.
struct Part {
  ScOperatorId id;
  std::string tensor;
  int64_t rows;
};

// Row scopes of the weight itself must be its own, or stacking would change what they cover.
bool MayStack(const LinearSpec& a, const LinearSpec& b) {
  if (a.precision != b.precision || a.sc != b.sc) return false;
  return a.sc == nullptr || (a.sc->config.granularity == ScGranularity::kPerRow && a.sc->config.group_b == 1);
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

  LinearGroup Group(Device device, std::span<const Part> parts, int64_t cols) {
    LinearGroup group;
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
    for (const Part& part : parts) sources.push_back(files_.weights->Matrix(part.tensor, part.rows, cols));
    std::unique_ptr<LinearWeight> weight = backend_.MakeLinear(device, sources, spec);
    // What was copied into the backend's own layout needs its file no more.
    for (size_t i = 0; i < parts.size(); ++i) {
      if (weight->bytes() > 0) files_.weights->Release(parts[i].tensor);
      Report(sources[i]);
    }
    return weight;
  }

  Buffer Vector(Device device, const std::string& tensor, int64_t cols) {
    const WeightSource source = files_.weights->Matrix(tensor, 1, cols);
    Buffer buffer = backend_.MakeVector(device, source);
    Report(source);
    return buffer;
  }

  void Report(const WeightSource& source) {
    progress_state_.done_bytes += SourceBytes(source);
    progress_state_.tensor = source.name;
    if (progress_) progress_(progress_state_);
  }

 private:
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

LlamaLayerWeights LoadLayer(WeightLoader& loader, const LlamaConfig& config, int64_t index, Device device) {
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = config.num_attention_heads * config.head_dim;
  const int64_t kv_rows = config.num_key_value_heads * config.head_dim;
  const auto name = [index](std::string_view part) { return LayerTensorName(index, part); };
  using enum ScOperatorId;
  const Part qkv[] = {{kQProj, name("self_attn.q_proj"), q_rows},
                      {kKProj, name("self_attn.k_proj"), kv_rows},
                      {kVProj, name("self_attn.v_proj"), kv_rows}};
  const Part o[] = {{kOProj, name("self_attn.o_proj"), hidden}};
  const Part gate_up[] = {{kGateProj, name("mlp.gate_proj"), config.intermediate_size},
                          {kUpProj, name("mlp.up_proj"), config.intermediate_size}};
  const Part down[] = {{kDownProj, name("mlp.down_proj"), hidden}};

  LlamaLayerWeights layer;
  layer.device = device;
  layer.input_norm = loader.Vector(device, name("input_layernorm"), hidden);
  layer.qkv = loader.Group(device, qkv, hidden);
  layer.o = loader.Group(device, o, q_rows);
  layer.post_attention_norm = loader.Vector(device, name("post_attention_layernorm"), hidden);
  layer.gate_up = loader.Group(device, gate_up, hidden);
  layer.down = loader.Group(device, down, config.intermediate_size);
  return layer;
}

void AddBytes(LlamaWeights& weights) {
  for (const LlamaLayerWeights& layer : weights.layers) {
    for (const LinearGroup* group : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      for (const auto& weight : group->weights) {
        weights.decoder_bytes += weight->bytes();
        weights.stream_bytes += weight->stream_bytes();
      }
    }
    weights.bytes += static_cast<int64_t>(layer.input_norm.bytes() + layer.post_attention_norm.bytes());
  }
  weights.stream_bytes += weights.lm_head->stream_bytes();
  weights.bytes += weights.decoder_bytes + weights.lm_head->bytes() + weights.embedding->bytes() +
                   static_cast<int64_t>(weights.final_norm.bytes());
}

}  // namespace

std::string EmbeddingTensor(const ModelFiles& files) {
  const bool as_head = files.config.tie_word_embeddings && !files.weights->Has(kEmbeddingName);
  return std::string(as_head ? kLmHeadName : kEmbeddingName);
}

LlamaPlacement SingleDevice(const LlamaConfig& config, Device device) {
  return {device, std::vector<Device>(static_cast<size_t>(config.num_hidden_layers), device), device};
}

LlamaWeights LoadLlamaWeights(Backend& backend, const ModelFiles& files, Precision precision, const ScModelConfig& sc,
                              const LlamaPlacement& placement, const ProgressFn& progress) {
  const LlamaConfig& config = files.config;
  STOCH_CHECK(static_cast<int64_t>(placement.layers.size()) == config.num_hidden_layers);
  WeightLoader loader(backend, files, precision, sc, progress);

  const bool tied = config.tie_word_embeddings;
  const std::string embedding = EmbeddingTensor(files);
  const std::string head = tied ? embedding : std::string(kLmHeadName);

  LlamaWeights weights;
  const Part head_part[] = {{ScOperatorId::kLmHead, head, config.vocab_size}};
  const LinearSpec head_spec = loader.Spec(ScOperatorId::kLmHead);
  weights.lm_head = loader.Linear(placement.head, head_part, config.hidden_size, head_spec);
  const bool shared = tied && head_spec.precision != Precision::kSc && placement.head == placement.embedding;
  const WeightSource table = files.weights->Matrix(embedding, config.vocab_size, config.hidden_size);
  weights.embedding = backend.MakeEmbedding(placement.embedding, table, shared ? weights.lm_head.get() : nullptr);
  if (!tied) loader.Report(table);

  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    weights.layers.push_back(LoadLayer(loader, config, i, placement.layers[static_cast<size_t>(i)]));
  }
  weights.final_norm = loader.Vector(placement.head, std::string(kFinalNormName), config.hidden_size);
  AddBytes(weights);
  return weights;
}

}  // namespace stoch
