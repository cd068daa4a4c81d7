#include "models/decoder/memory_plan.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "loader/config/llama_tensors.h"
#include "models/decoder/weights.h"

namespace stoch {
namespace {

// Bytes of an SC matrix; a float of scale per row and chunk, and a zero point in unipolar mode.
MemoryBytes ScBytes(int64_t rows, int64_t cols, const ScConfig& sc) {
  MemoryBytes bytes;
  const int64_t chunks = sc.chunk_d > 0 ? (cols + sc.chunk_d - 1) / sc.chunk_d : 1;
  const int64_t scopes = sc.granularity == ScGranularity::kPerRow ? (rows + sc.group_b - 1) / sc.group_b : 1;
  bytes.weights = rows * cols;
  bytes.scales = scopes * chunks * (sc.mode == ScMode::kUnipolar ? 8 : 4);
  return bytes;
}

int64_t ExactBytes(const WeightSource& source, Precision precision) {
  const bool half = precision == Precision::kFp16 || source.host == nullptr;
  return source.rows * source.cols * (half ? 2 : static_cast<int64_t>(DTypeSize(source.dtype)));
}

}  // namespace

KvCacheSpec MakeKvCacheSpec(const LlamaConfig& config, Precision precision, const ScModelConfig& sc, int num_layers,
                            int64_t num_pages) {
  KvCacheSpec spec;
  spec.num_layers = num_layers;
  spec.num_kv_heads = static_cast<int>(config.num_key_value_heads);
  spec.head_dim = static_cast<int>(config.head_dim);
  spec.page_tokens = kKvPageTokens;
  spec.num_pages = num_pages;
  spec.precision = precision == Precision::kFp16 ? Precision::kFp16 : Precision::kFp32;
  if (precision == Precision::kSc && sc.attention != AttentionMode::kExact) {
    spec.mode = sc.attention;
    spec.qk = MakeScOperator(sc.at(ScOperatorId::kQk));
    spec.av = MakeScOperator(sc.at(ScOperatorId::kAv));
  }
  return spec;
}

LogitQueryLimits LogitQueryLimitsOf(const LlamaConfig& config, const PassShape& shape) {
  LogitQueryLimits limits;
  limits.vocab_size = config.vocab_size;
  limits.max_picks = shape.max_sequences;
  limits.max_logprobs = shape.max_rows;
  limits.max_entries = shape.max_sequences * (kMaxLogitBiases + std::min(shape.context, config.vocab_size));
  return limits;
}

WorkspaceSizes MakeWorkspaceSizes(const LlamaConfig& config, const PassShape& shape, const DecoderShard& shard,
                                  bool divided, bool is_first) {
  const int64_t row_bytes = shape.max_rows * 4;
  WorkspaceSizes sizes;
  sizes.hidden = row_bytes * config.hidden_size;
  sizes.qkv = row_bytes * (shard.heads.size() + 2 * shard.kv_heads.size()) * config.head_dim;
  sizes.attention = row_bytes * config.num_attention_heads * config.head_dim;
  sizes.gate_up = row_bytes * 2 * shard.intermediate.size();
  sizes.activation = divided ? row_bytes * config.intermediate_size : 0;
  sizes.rope = shape.context * config.head_dim * 4;
  sizes.logits = shape.max_logit_rows * (is_first ? config.vocab_size : shard.vocab.size()) * 4;
  sizes.lanes = shape.lanes;
  return sizes;
}

namespace {

// Matrices that multiply the same activations, on one device.
struct LinearShape {
  ScOperatorId id;
  std::string_view op;
  std::vector<int64_t> out_features;
  int64_t in_features = 0;
};

std::vector<LinearShape> LinearsOf(const LlamaConfig& config, const DecoderShard& shard, bool has_head) {
  using enum ScOperatorId;
  const int64_t kv_rows = shard.kv_heads.size() * config.head_dim;
  const int64_t gate_rows = shard.intermediate.size();
  std::vector<LinearShape> linears = {
      {kQProj, "qkv_proj", {shard.heads.size() * config.head_dim, kv_rows, kv_rows}, config.hidden_size},
      {kOProj, "o_proj", {shard.hidden.size()}, config.num_attention_heads * config.head_dim},
      {kGateProj, "gate_up_proj", {gate_rows, gate_rows}, config.hidden_size},
      {kDownProj, "down_proj", {shard.hidden.size()}, config.intermediate_size}};
  if (has_head) linears.push_back({kLmHead, "lm_head", {shard.vocab.size()}, config.hidden_size});
  std::erase_if(linears, [](const LinearShape& linear) {
    return std::all_of(linear.out_features.begin(), linear.out_features.end(), [](int64_t rows) { return rows == 0; });
  });
  return linears;
}

// Specifications by operator; most models have one for all linears, and its tables take a while.
class Specs {
 public:
  Specs(Precision precision, const ScModelConfig& sc) : precision_(precision), sc_(sc) {}
  LinearSpec Of(ScOperatorId id) {
    LinearSpec spec{precision_, nullptr};
    if (precision_ != Precision::kSc) return spec;
    if (id == ScOperatorId::kLmHead && !sc_.sc_lm_head) return {Precision::kFp32, nullptr};
    auto found = std::find_if(operators_.begin(), operators_.end(),
                              [&](const auto& entry) { return entry.first == sc_.at(id); });
    if (found == operators_.end()) found = operators_.insert(found, {sc_.at(id), MakeScOperator(sc_.at(id))});
    spec.sc = found->second;
    return spec;
  }

 private:
  Precision precision_;
  const ScModelConfig& sc_;
  std::vector<std::pair<ScConfig, ScOperatorPtr>> operators_;
};

KvCacheSpec OneLayerSpec(const LlamaConfig& config, Precision precision, const ScModelConfig& sc,
                         const DecoderShard& shard) {
  KvCacheSpec spec = MakeKvCacheSpec(config, precision, sc, 1, 1);
  spec.num_kv_heads = static_cast<int>(shard.kv_heads.size());
  return spec;
}

}  // namespace

int64_t ScratchBytes(const LlamaConfig& config, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                     const Backend& backend, const DecoderShard& shard, bool has_head) {
  Specs specs(precision, sc);
  int64_t most = 0;
  for (const LinearShape& linear : LinearsOf(config, shard, has_head)) {
    const int64_t tokens = linear.id == ScOperatorId::kLmHead ? shape.max_logit_rows : shape.max_rows;
    most = std::max(most,
                    backend.LinearScratchBytes(specs.Of(linear.id), linear.out_features, linear.in_features, tokens));
  }
  if (!shard.heads.empty() && !shard.kv_heads.empty()) {
    const int64_t pages = (shape.context + kKvPageTokens - 1) / kKvPageTokens;
    most = std::max(most, backend.AttentionScratchBytes(OneLayerSpec(config, precision, sc, shard),
                                                        static_cast<int>(shard.heads.size()),
                                                        {shape.max_rows, shape.max_sequences, pages}));
  }
  return backend.AllocatedBytes(most);
}

std::vector<OperatorKernels> KernelsOf(const LlamaConfig& config, Precision precision, const ScModelConfig& sc,
                                       const Backend& backend, const DecoderShard& shard,
                                       std::span<const int64_t> tokens) {
  Specs specs(precision, sc);
  std::vector<OperatorKernels> result;
  for (const LinearShape& linear : LinearsOf(config, shard, true)) {
    OperatorKernels& row = result.emplace_back(OperatorKernels{std::string(linear.op), {}});
    for (const int64_t count : tokens) {
      row.kernels.push_back(backend.LinearKernel(specs.Of(linear.id), linear.out_features, linear.in_features, count));
    }
    if (linear.id != ScOperatorId::kQProj) continue;
    OperatorKernels& attention = result.emplace_back(OperatorKernels{"attention", {}});
    for (const int64_t count : tokens) {
      attention.kernels.push_back(backend.AttentionKernel(OneLayerSpec(config, precision, sc, shard),
                                                          static_cast<int>(shard.heads.size()), count,
                                                          count > kStepTokens));
    }
  }
  return result;
}

MemoryPlan PlanMemory(const ModelFiles& files, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                      const Backend& backend) {
  const Device alone;
  return PlanShard(files, precision, sc, shape, backend, DivideRows(files.config, {&alone, 1}), 0);
}

MemoryPlan PlanShard(const ModelFiles& files, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                     const Backend& backend, std::span<const DecoderShard> shards, size_t index) {
  if (precision == Precision::kSc) Validate(sc);
  const LlamaConfig& config = files.config;
  const DecoderShard& shard = shards[index];
  // `wanted` of the rows of a matrix.
  const auto matrix = [&](ScOperatorId id, const std::string& name, int64_t rows, int64_t cols, int64_t wanted) {
    const bool is_sc = precision == Precision::kSc && (id != ScOperatorId::kLmHead || sc.sc_lm_head);
    if (is_sc) return ScBytes(wanted, cols, sc.at(id));
    MemoryBytes bytes;
    bytes.weights = ExactBytes(SliceRows(files.weights->Matrix(name, rows, cols), 0, wanted), precision);
    return bytes;
  };
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t q_rows = config.num_attention_heads * config.head_dim;
  const int64_t kv_rows = config.num_key_value_heads * config.head_dim;
  const int64_t q_wanted = shard.heads.size() * config.head_dim;
  const int64_t kv_wanted = shard.kv_heads.size() * config.head_dim;
  // Window modes on a GPU quantize into codes that all layers share: a second layer costs less than the first.
  const auto kv_bytes = [&](int layers) -> int64_t {
    KvCacheSpec spec = MakeKvCacheSpec(config, precision, sc, layers, NumPages(shape));
    spec.num_kv_heads = static_cast<int>(shard.kv_heads.size());
    return spec.num_kv_heads > 0 ? backend.KvCacheBytes(spec) : 0;
  };
  const int64_t layer_kv_bytes = kv_bytes(2) - kv_bytes(1);

  MemoryPlan plan;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    MemoryBytes& layer = plan.layers.emplace_back();
    int64_t group = 0;  // bytes of the matrices that share a buffer
    int64_t padding = 0;
    const auto add = [&](ScOperatorId id, std::string_view part, int64_t rows, int64_t cols, int64_t wanted) {
      const MemoryBytes bytes = matrix(id, LayerTensorName(i, part), rows, cols, wanted);
      layer += bytes;
      group += bytes.weights + bytes.scales;
    };
    const auto end_group = [&] {
      padding += backend.AllocatedBytes(group) - group;
      group = 0;
    };
    using enum ScOperatorId;
    add(kQProj, "self_attn.q_proj", q_rows, hidden, q_wanted);
    add(kKProj, "self_attn.k_proj", kv_rows, hidden, kv_wanted);
    add(kVProj, "self_attn.v_proj", kv_rows, hidden, kv_wanted);
    end_group();
    add(kOProj, "self_attn.o_proj", hidden, q_rows, shard.hidden.size());
    end_group();
    add(kGateProj, "mlp.gate_proj", intermediate, hidden, shard.intermediate.size());
    add(kUpProj, "mlp.up_proj", intermediate, hidden, shard.intermediate.size());
    end_group();
    add(kDownProj, "mlp.down_proj", hidden, intermediate, shard.hidden.size());
    end_group();
    plan.decode_stream_bytes += layer.weights + layer.scales;
    layer.weights += padding + 2 * hidden * 4;  // norms
    layer.kv_cache = layer_kv_bytes;
  }

  const std::string embedding = EmbeddingTensor(files);
  const bool tied = config.tie_word_embeddings;
  const std::string head = tied ? embedding : std::string(kLmHeadName);
  plan.rest = matrix(ScOperatorId::kLmHead, head, config.vocab_size, hidden, shard.vocab.size());
  const int64_t head_bytes = plan.rest.weights + plan.rest.scales;
  plan.decode_stream_bytes += head_bytes;
  plan.rest.weights += backend.AllocatedBytes(head_bytes) - head_bytes + hidden * 4;  // final norm
  plan.rest.kv_cache = kv_bytes(1) - layer_kv_bytes;
  // A tied exact head is the embedding, unless it is in pieces.
  const bool divided = shards.size() > 1;
  const bool shared = tied && !divided && !(precision == Precision::kSc && sc.sc_lm_head);
  if (!shared && index == 0) {
    int64_t& bytes = backend.keeps_embedding_on_host() ? plan.rest.host : plan.rest.embedding;
    bytes = ExactBytes(files.weights->Matrix(embedding, config.vocab_size, hidden), Precision::kFp32);
  }
  const WorkspaceSizes workspace = MakeWorkspaceSizes(config, shape, shard, divided, index == 0);
  const int64_t scratch = ScratchBytes(config, precision, sc, shape, backend, shard, true);
  const int64_t queries =
      index == 0 ? shape.lanes * backend.AllocatedBytes(backend.LogitQueryBytes(LogitQueryLimitsOf(config, shape))) : 0;
  plan.rest.workspace = workspace.total() + queries + scratch;
  plan.head_workspace =
      workspace.head() + queries + scratch - ScratchBytes(config, precision, sc, shape, backend, shard, false);
  plan.rest.runtime = backend.info(backend.devices()[std::min(index, backend.devices().size() - 1)]).runtime_bytes;
  plan.total = plan.rest;
  for (const MemoryBytes& layer : plan.layers) plan.total += layer;
  return plan;
}

}  // namespace stoch
