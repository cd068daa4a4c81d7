// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/memory_plan.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "loader/config/decoder_tensors.h"
#include "models/decoder/weights.h"
#include "models/sc_plan.h"

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

// Integers go by chunks of their own.
ScConfig AttentionConfig(ScConfig op) {
  constexpr int64_t kIntChunk = 128;
  if (IntBits(op.arith) > 0) op.chunk_d = kIntChunk;
  return op;
}

int64_t ExactBytes(const Backend& backend, const WeightSource& source, Precision precision) {
  return precision == Precision::kFp16 ? source.rows * source.cols * 2 : backend.ExactBytes(source);
}

}  // namespace

KvCacheSpec MakeKvCacheSpec(const DecoderConfig& config, Precision precision, const ScModelConfig& sc, int num_layers,
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
    spec.qk = MakeScOperator(AttentionConfig(sc.at(ScOperatorId::kQk)));
    spec.av = MakeScOperator(AttentionConfig(sc.at(ScOperatorId::kAv)));
  }
  return spec;
}

LogitQueryLimits LogitQueryLimitsOf(const DecoderConfig& config, const PassShape& shape) {
  LogitQueryLimits limits;
  limits.vocab_size = config.vocab_size;
  limits.max_picks = shape.max_sequences;
  limits.max_logprobs = shape.max_rows;
  limits.max_entries = shape.max_sequences * (kMaxLogitBiases + std::min(shape.context, config.vocab_size));
  return limits;
}

WorkspaceSizes MakeWorkspaceSizes(const DecoderConfig& config, const PassShape& shape, const DecoderShard& shard,
                                  bool divided, bool is_first) {
  const int64_t row_bytes = ShapeOn(shape, shard).max_rows * 4;
  WorkspaceSizes sizes;
  sizes.hidden = row_bytes * config.hidden_size;
  sizes.qkv = row_bytes * (shard.heads.size() + 2 * shard.kv_heads.size()) * config.head_dim;
  sizes.attention = row_bytes * config.num_attention_heads * config.head_dim;
  // A row of a layer with experts has as many rows there as experts that it takes.
  const int64_t dense = config.HasDenseLayers() ? 1 : 0;
  const int64_t slots = config.HasExperts() ? config.num_experts_per_tok : 0;
  sizes.gate_up = row_bytes * 2 * std::max(dense * shard.intermediate.size(), slots * shard.expert_intermediate.size());
  sizes.activation =
      divided ? row_bytes * std::max(dense * config.intermediate_size, slots * config.moe_intermediate_size) : 0;
  if (slots > 0) {
    sizes.router = row_bytes * config.num_experts;
    sizes.chosen = row_bytes * slots;
    sizes.expert_weights = row_bytes * slots;
    sizes.expert_out = row_bytes * slots * shard.hidden.size();
  }
  sizes.head_input = shard.stripe.count == 1   ? sizes.hidden
                     : shard.stripe.index == 0 ? shape.max_logit_rows * 4 * config.hidden_size
                                               : 0;
  sizes.rope = RopeRows(shape, shard) * config.head_dim * 4;
  sizes.logits = shape.max_logit_rows * (is_first ? config.vocab_size : shard.vocab.size()) * 4;
  sizes.lanes = shape.lanes;
  return sizes;
}

namespace {

// Matrices that multiply the same activations, on one device.
struct LinearShape {
  ScOperatorId id;
  std::string op;
  std::vector<int64_t> out_features;
  int64_t in_features = 0;
};

std::vector<LinearShape> ShapesOf(const DecoderConfig& config, const DecoderShard& shard, bool has_head) {
  std::vector<LinearShape> shapes;
  for (const BlockGroup group : kBlockGroups) {
    const auto linears = LinearsOf(*config.architecture, group);
    if (!linears.front().expert.empty() && !config.HasDenseLayers()) continue;
    LinearShape shape{
        OperatorOf(linears.front().id), std::string(GroupName(group)), {}, SizeOf(config, linears.front().in)};
    for (const BlockLinear& linear : linears) {
      shape.out_features.push_back(RangeOf(config, shard, linear.out).size());
    }
    shapes.push_back(std::move(shape));
  }
  if (has_head) shapes.push_back({ScOperatorId::kLmHead, "lm_head", {shard.vocab.size()}, config.hidden_size});
  std::erase_if(shapes, [](const LinearShape& linear) {
    return std::all_of(linear.out_features.begin(), linear.out_features.end(), [](int64_t rows) { return rows == 0; });
  });
  return shapes;
}

// Specifications by operator; most models have one for all linears, and its tables take a while.
class Specs {
 public:
  Specs(Precision precision, const ScModelConfig& sc) : precision_(precision), sc_(sc) {}
  LinearSpec Of(ScOperatorId id) {
    if (precision_ != Precision::kSc) {
      return id == ScOperatorId::kLmHead ? HeadOf(precision_) : LinearSpec{precision_, nullptr};
    }
    if (id == ScOperatorId::kLmHead && !sc_.sc_lm_head) return ExactHead();
    LinearSpec spec{precision_, nullptr};
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

KvCacheSpec OneLayerSpec(const DecoderConfig& config, Precision precision, const ScModelConfig& sc,
                         const DecoderShard& shard) {
  KvCacheSpec spec = MakeKvCacheSpec(config, precision, sc, 1, 1);
  spec.num_kv_heads = static_cast<int>(shard.kv_heads.size());
  spec.stripes = shard.stripe.count;
  return spec;
}

// The longest segment of dilated attention; 0: attention is dense.
int64_t LongestSegment(Precision precision, const ScModelConfig& sc) {
  int64_t longest = 0;
  if (precision != Precision::kSc) return longest;
  for (const DilatedPair& pair : sc.DilatedPairs()) longest = std::max(longest, pair.segment);
  return longest;
}

// Of layers with experts: the router, and the experts' matrices over every row that they take.
int64_t ExpertScratchBytes(const DecoderConfig& config, Specs& specs, const PassShape& shape, const Backend& backend) {
  const int64_t experts[] = {config.num_experts};
  int64_t most = backend.LinearScratchBytes({Precision::kFp32, nullptr}, experts, config.hidden_size, shape.max_rows);
  for (const BlockGroup group : kBlockGroups) {
    const auto linears = LinearsOf(*config.architecture, group);
    if (linears.front().expert.empty()) continue;
    // The experts of a row share it, until each has made one of its own.
    const int64_t rows = shape.max_rows * (group == BlockGroup::kDown ? config.num_experts_per_tok : 1);
    most = std::max(most, backend.ExpertScratchBytes(specs.Of(OperatorOf(linears.front().id)),
                                                     SizeOf(config, ExpertAxis(linears.front().in)), rows));
  }
  return most;
}

}  // namespace

int64_t RingBytes(const DecoderConfig& config, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                  const Backend& backend, const DecoderShard& shard) {
  if (shard.stripe.count == 1 || shard.kv_heads.empty()) return 0;
  const PassLimits limits{shape.max_rows, shape.max_sequences, PagesOf(shape.context)};
  return backend.RingScratchBytes(OneLayerSpec(config, precision, sc, shard), static_cast<int>(shard.heads.size()),
                                  limits);
}

int64_t ScratchBytes(const DecoderConfig& config, Precision precision, const ScModelConfig& sc, const PassShape& whole,
                     const Backend& backend, const DecoderShard& shard, bool has_head) {
  const PassShape shape = ShapeOn(whole, shard);
  Specs specs(precision, sc);
  int64_t most = 0;
  for (const LinearShape& linear : ShapesOf(config, shard, has_head)) {
    const int64_t tokens = linear.id == ScOperatorId::kLmHead ? shape.max_logit_rows : shape.max_rows;
    most = std::max(most,
                    backend.LinearScratchBytes(specs.Of(linear.id), linear.out_features, linear.in_features, tokens));
  }
  if (config.HasExperts()) most = std::max(most, ExpertScratchBytes(config, specs, shape, backend));
  if (!shard.heads.empty() && !shard.kv_heads.empty()) {
    most = std::max(most, backend.AttentionScratchBytes(OneLayerSpec(config, precision, sc, shard),
                                                        static_cast<int>(shard.heads.size()),
                                                        {shape.max_rows, shape.max_sequences, PagesOf(shape.context)}));
  }
  return backend.AllocatedBytes(most);
}

std::vector<OperatorKernels> KernelsOf(const DecoderConfig& config, Precision precision, const ScModelConfig& sc,
                                       const Backend& backend, const DecoderShard& shard,
                                       std::span<const int64_t> tokens) {
  Specs specs(precision, sc);
  std::vector<OperatorKernels> result;
  for (const LinearShape& linear : ShapesOf(config, shard, true)) {
    OperatorKernels& row = result.emplace_back(OperatorKernels{linear.op, {}});
    for (const int64_t count : tokens) {
      row.kernels.push_back(backend.LinearKernel(specs.Of(linear.id), linear.out_features, linear.in_features, count));
    }
    if (linear.id != ScOperatorId::kQProj) continue;
    OperatorKernels& attention = result.emplace_back(OperatorKernels{"attention", {}});
    for (const int64_t count : tokens) {
      attention.kernels.push_back(backend.AttentionKernel(OneLayerSpec(config, precision, sc, shard),
                                                          static_cast<int>(shard.heads.size()), count,
                                                          count > kStepTokens, LongestSegment(precision, sc)));
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
  const DecoderConfig& config = files.config;
  const DecoderShard& shard = shards[index];
  // `wanted` of the rows of a matrix.
  const auto matrix = [&](ScOperatorId id, const std::string& name, int64_t rows, int64_t cols, int64_t wanted) {
    const bool is_sc = precision == Precision::kSc && (id != ScOperatorId::kLmHead || sc.sc_lm_head);
    if (is_sc) return ScBytes(wanted, cols, sc.at(id));
    MemoryBytes bytes;
    const WeightSource source = SliceRows(files.weights->Matrix(name, rows, cols), 0, wanted);
    bytes.weights = ExactBytes(backend, source, precision);
    const bool is_head = id == ScOperatorId::kLmHead && precision != Precision::kFp16;
    if (is_head && IsFixedPoint(ExactHead(), {&source, 1})) bytes.scales = wanted * static_cast<int64_t>(sizeof(float));
    return bytes;
  };
  const int64_t hidden = config.hidden_size;
  // Window modes on a GPU quantize into codes that all layers share: a second layer costs less than the first.
  const auto kv_bytes = [&](int layers) -> int64_t {
    KvCacheSpec spec = MakeKvCacheSpec(config, precision, sc, layers, NumPages(shape));
    spec.num_kv_heads = static_cast<int>(shard.kv_heads.size());
    spec.stripes = shard.stripe.count;
    return spec.num_kv_heads > 0 ? backend.KvCacheBytes(spec) : 0;
  };
  const int64_t layer_kv_bytes = kv_bytes(2) - kv_bytes(1);

  MemoryPlan plan;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    MemoryBytes& layer = plan.layers.emplace_back();
    int64_t padding = 0;
    // The matrices of a group, or of one expert's, share a buffer. Returns its bytes.
    const auto add_group = [&](std::span<const BlockLinear> linears, int64_t expert) {
      int64_t bytes = 0;
      for (const BlockLinear& linear : linears) {
        const auto axis = [expert](Axis of) { return expert < 0 ? of : ExpertAxis(of); };
        const MemoryBytes part =
            matrix(OperatorOf(linear.id), LinearTensorName(config, i, expert, linear), SizeOf(config, axis(linear.out)),
                   SizeOf(config, axis(linear.in)), RangeOf(config, shard, axis(linear.out)).size());
        layer += part;
        bytes += part.weights + part.scales;
      }
      padding += backend.AllocatedBytes(bytes) - bytes;
      return bytes;
    };
    int64_t vectors = 0;
    for (const BlockVector& vector : config.architecture->vectors) vectors += SizeOf(config, vector.length) * 4;
    for (const BlockGroup group : kBlockGroups) {
      const auto linears = LinearsOf(*config.architecture, group);
      if (config.HasExperts(i) && !linears.front().expert.empty()) {
        int64_t bytes = 0;
        for (int64_t expert = 0; expert < config.num_experts; ++expert) bytes += add_group(linears, expert);
        plan.decode_stream_bytes += bytes / config.num_experts * config.num_experts_per_tok;
        continue;
      }
      plan.decode_stream_bytes += add_group(linears, -1);
      if (!config.HasBias(group)) continue;
      for (const BlockLinear& linear : linears) vectors += RangeOf(config, shard, linear.out).size() * 4;
    }
    if (config.HasExperts(i)) {
      const std::string router = LayerTensorName(i, config.architecture->router);
      const int64_t bytes =
          ExactBytes(backend, files.weights->Matrix(router, config.num_experts, hidden), Precision::kFp32);
      layer.weights += backend.AllocatedBytes(bytes);
      plan.decode_stream_bytes += bytes;
    }
    layer.weights += padding + vectors;
    layer.kv_cache = layer_kv_bytes;
  }

  const std::string embedding = EmbeddingTensor(files);
  const bool tied = config.tie_word_embeddings;
  const std::string head = tied ? embedding : std::string(kLmHeadName);
  plan.rest = matrix(ScOperatorId::kLmHead, head, config.vocab_size, hidden, shard.vocab.size());
  const int64_t head_bytes = plan.rest.weights + plan.rest.scales;
  plan.decode_stream_bytes += head_bytes;
  const bool is_sc_head = precision == Precision::kSc && sc.sc_lm_head;
  const bool is_fixed_head = !is_sc_head && plan.rest.scales > 0;
  const int64_t screen = is_fixed_head ? backend.ScreenBytes(shard.vocab.size(), hidden) : 0;
  plan.rest.weights += backend.AllocatedBytes(head_bytes + screen) - head_bytes + hidden * 4;  // final norm
  plan.rest.kv_cache = kv_bytes(1) - layer_kv_bytes;
  // A tied exact head is the embedding, unless it is in pieces.
  const size_t sharers = shards.size() / static_cast<size_t>(shard.stripe.count);
  const bool divided = sharers > 1;
  const bool shared = tied && !divided && shard.stripe.index == 0 && !is_sc_head;
  if (!shared && index % sharers == 0) {
    int64_t& bytes = backend.keeps_embedding_on_host() ? plan.rest.host : plan.rest.embedding;
    bytes = ExactBytes(backend, files.weights->Matrix(embedding, config.vocab_size, hidden), Precision::kFp32);
  }
  const WorkspaceSizes workspace = MakeWorkspaceSizes(config, shape, shard, divided, index == 0);
  const int64_t scratch = ScratchBytes(config, precision, sc, shape, backend, shard, true);
  const int64_t queries =
      index == 0 ? shape.lanes * backend.AllocatedBytes(backend.LogitQueryBytes(LogitQueryLimitsOf(config, shape))) : 0;
  // Rows that logits are compared with.
  const int64_t base = index == 0 ? backend.AllocatedBytes(shape.base_rows * config.vocab_size * 4) : 0;
  const int64_t ring = backend.AllocatedBytes(RingBytes(config, precision, sc, shape, backend, shard));
  plan.rest.workspace = workspace.total() + queries + base + scratch + ring;
  plan.head_workspace =
      workspace.head() + queries + base + scratch - ScratchBytes(config, precision, sc, shape, backend, shard, false);
  plan.rest.runtime = backend.info(backend.devices()[std::min(index, backend.devices().size() - 1)]).runtime_bytes;
  plan.total = plan.rest;
  for (const MemoryBytes& layer : plan.layers) plan.total += layer;
  return plan;
}

}  // namespace stoch
