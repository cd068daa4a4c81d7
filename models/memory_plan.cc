#include "models/memory_plan.h"

#include <string>
#include <string_view>

#include "loader/llama_tensors.h"
#include "models/llama_weights.h"

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

void Add(MemoryBytes& sum, const MemoryBytes& part) {
  sum.weights += part.weights;
  sum.scales += part.scales;
  sum.embedding += part.embedding;
  sum.kv_cache += part.kv_cache;
  sum.workspace += part.workspace;
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

WorkspaceSizes MakeWorkspaceSizes(const LlamaConfig& config, const PassShape& shape) {
  const int64_t q_cols = config.num_attention_heads * config.head_dim;
  WorkspaceSizes sizes;
  sizes.hidden = shape.max_rows * config.hidden_size * 4;
  sizes.qkv = shape.max_rows * (q_cols + 2 * config.num_key_value_heads * config.head_dim) * 4;
  sizes.attention = shape.max_rows * q_cols * 4;
  sizes.gate_up = shape.max_rows * 2 * config.intermediate_size * 4;
  sizes.rope = shape.context * config.head_dim * 4;
  sizes.logits = shape.max_logit_rows * config.vocab_size * 4;
  return sizes;
}

MemoryPlan PlanMemory(const ModelFiles& files, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                      const Backend& backend) {
  if (precision == Precision::kSc) Validate(sc);
  const LlamaConfig& config = files.config;
  const auto matrix = [&](ScOperatorId id, const std::string& name, int64_t rows, int64_t cols) {
    const bool is_sc = precision == Precision::kSc && (id != ScOperatorId::kLmHead || sc.sc_lm_head);
    if (is_sc) return ScBytes(rows, cols, sc.at(id));
    MemoryBytes bytes;
    bytes.weights = ExactBytes(files.weights->Matrix(name, rows, cols), precision);
    return bytes;
  };
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = config.num_attention_heads * config.head_dim;
  const int64_t kv_rows = config.num_key_value_heads * config.head_dim;
  // Window modes on a GPU quantize into codes that all layers share: a second layer costs less than the first.
  const auto kv_bytes = [&](int layers) {
    return backend.KvCacheBytes(MakeKvCacheSpec(config, precision, sc, layers, NumPages(shape)));
  };
  const int64_t layer_kv_bytes = kv_bytes(2) - kv_bytes(1);

  MemoryPlan plan;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    MemoryBytes& layer = plan.layers.emplace_back();
    const auto add = [&](ScOperatorId id, std::string_view part, int64_t rows, int64_t cols) {
      Add(layer, matrix(id, LayerTensorName(i, part), rows, cols));
    };
    using enum ScOperatorId;
    add(kQProj, "self_attn.q_proj", q_rows, hidden);
    add(kKProj, "self_attn.k_proj", kv_rows, hidden);
    add(kVProj, "self_attn.v_proj", kv_rows, hidden);
    add(kOProj, "self_attn.o_proj", hidden, q_rows);
    add(kGateProj, "mlp.gate_proj", config.intermediate_size, hidden);
    add(kUpProj, "mlp.up_proj", config.intermediate_size, hidden);
    add(kDownProj, "mlp.down_proj", hidden, config.intermediate_size);
    plan.decode_stream_bytes += layer.weights + layer.scales;
    layer.weights += 2 * hidden * 4;  // norms
    layer.kv_cache = layer_kv_bytes;
  }

  const std::string embedding = EmbeddingTensor(files);
  const bool tied = config.tie_word_embeddings;
  const std::string head = tied ? embedding : std::string(kLmHeadName);
  plan.rest = matrix(ScOperatorId::kLmHead, head, config.vocab_size, hidden);
  plan.decode_stream_bytes += plan.rest.weights + plan.rest.scales;
  plan.rest.weights += hidden * 4;  // final norm
  plan.rest.kv_cache = kv_bytes(1) - layer_kv_bytes;
  // A tied exact head is the embedding.
  const bool shared = tied && !(precision == Precision::kSc && sc.sc_lm_head);
  plan.rest.embedding =
      shared ? 0 : ExactBytes(files.weights->Matrix(embedding, config.vocab_size, hidden), Precision::kFp32);
  plan.rest.workspace = MakeWorkspaceSizes(config, shape).total();
  plan.total = plan.rest;
  for (const MemoryBytes& layer : plan.layers) Add(plan.total, layer);
  return plan;
}

}  // namespace stoch
