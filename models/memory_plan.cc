#include "models/memory_plan.h"

#include <algorithm>

namespace stoch {
namespace {

// Bytes of one matrix; scales of an SC one are a float per row and chunk (and a zero point in unipolar mode).
MemoryBytes MatrixBytes(int64_t rows, int64_t cols, Precision precision, const ScConfig& sc) {
  MemoryBytes bytes;
  if (precision != Precision::kSc) {
    bytes.weights = rows * cols * (precision == Precision::kFp16 ? 2 : 4);
    return bytes;
  }
  const int64_t chunks = sc.chunk_d > 0 ? (cols + sc.chunk_d - 1) / sc.chunk_d : 1;
  const int64_t scopes = sc.granularity == ScGranularity::kPerRow ? (rows + sc.group_b - 1) / sc.group_b : 1;
  bytes.weights = rows * cols;
  bytes.scales = scopes * chunks * (sc.mode == ScMode::kUnipolar ? 8 : 4);
  return bytes;
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

MemoryPlan PlanMemory(const LlamaConfig& config, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                      const Backend& backend) {
  if (precision == Precision::kSc) Validate(sc);
  const Precision exact = precision == Precision::kSc ? Precision::kFp32 : precision;
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = config.num_attention_heads * config.head_dim;
  const int64_t kv_rows = config.num_key_value_heads * config.head_dim;
  const auto matrix = [&](ScOperatorId id, int64_t rows, int64_t cols) {
    const bool is_sc = precision == Precision::kSc && (id != ScOperatorId::kLmHead || sc.sc_lm_head);
    return MatrixBytes(rows, cols, is_sc ? Precision::kSc : exact, sc.at(id));
  };

  MemoryBytes layer;
  using enum ScOperatorId;
  Add(layer, matrix(kQProj, q_rows, hidden));
  Add(layer, matrix(kKProj, kv_rows, hidden));
  Add(layer, matrix(kVProj, kv_rows, hidden));
  Add(layer, matrix(kOProj, hidden, q_rows));
  Add(layer, matrix(kGateProj, config.intermediate_size, hidden));
  Add(layer, matrix(kUpProj, config.intermediate_size, hidden));
  Add(layer, matrix(kDownProj, hidden, config.intermediate_size));
  const int64_t linear_bytes = layer.weights + layer.scales;
  layer.weights += 2 * hidden * 4;  // norms
  layer.kv_cache = backend.KvCacheBytes(MakeKvCacheSpec(config, precision, sc, 1, NumPages(shape)));

  const MemoryBytes head = matrix(kLmHead, config.vocab_size, hidden);
  const WorkspaceSizes sizes = MakeWorkspaceSizes(config, shape);
  MemoryPlan plan;
  plan.layers.assign(static_cast<size_t>(config.num_hidden_layers), layer);
  plan.rest = head;
  plan.rest.weights += hidden * 4;  // final norm
  // A tied exact head is the embedding; the table itself is looked up, never multiplied, so it stays as in the file.
  const bool shared = config.tie_word_embeddings && !(precision == Precision::kSc && sc.sc_lm_head);
  plan.rest.embedding = shared ? 0 : config.vocab_size * hidden * (precision == Precision::kFp16 ? 2 : 4);
  plan.rest.workspace = sizes.total();
  plan.total = plan.rest;
  for (const MemoryBytes& bytes : plan.layers) Add(plan.total, bytes);
  plan.decode_stream_bytes = linear_bytes * config.num_hidden_layers + head.weights + head.scales;
  return plan;
}

}  // namespace stoch
