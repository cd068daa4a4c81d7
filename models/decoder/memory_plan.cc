// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/memory_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/math/number_formats.h"
#include "models/decoder/rope_table.h"
#include "models/decoder/weights.h"
#include "models/hardware_plan.h"
#include "models/operator_group.h"
#include "models/sc_plan.h"

namespace stoch {
namespace {

// Bytes of an SC matrix; a float of scale per row and chunk, and a zero point in unipolar mode.
MemoryBytes ScBytes(int64_t rows, int64_t cols, const ScConfig& sc) {
  MemoryBytes bytes;
  const int64_t size = sc.arith == ScArith::kMxInt8 ? kMxBlock : sc.chunk_d;
  const int64_t chunks = size > 0 ? (cols + size - 1) / size : 1;
  const int64_t scopes = sc.granularity == ScGranularity::kPerRow ? (rows + sc.group_b - 1) / sc.group_b : 1;
  bytes.weights = rows * cols;
  bytes.scales = scopes * chunks * (sc.mode == ScMode::kUnipolar ? 8 : 4);
  return bytes;
}

// Integers and formats of numbers go by chunks of their own.
ScConfig AttentionConfig(ScConfig op) {
  constexpr int64_t kIntChunk = 128;
  if (op.arith != ScArith::kSc) op.chunk_d = kIntChunk;
  return op;
}

// Whether any layer has keys in MXINT8.
bool HasMxKeys(const ScModelConfig& sc) {
  const auto is_mx = [](const ScConfig& qk) { return qk.arith == ScArith::kMxInt8; };
  return is_mx(sc.at(ScOperatorId::kQk)) || std::any_of(sc.layers.begin(), sc.layers.end(), [&](const auto& layer) {
           return is_mx(layer.second[static_cast<size_t>(ScOperatorId::kQk)]);
         });
}

int64_t ExactBytes(const Backend& backend, const WeightSource& source, Precision precision) {
  return precision == Precision::kFp16 ? source.rows * source.cols * 2 : backend.ExactBytes(source);
}

}  // namespace

namespace {

// Whether any layer has factors of q and k.
bool SmoothsQk(const ScModelConfig& sc) {
  return sc.files.smooth != nullptr && std::any_of(sc.files.smooth->scales.begin(), sc.files.smooth->scales.end(),
                                                   [](const auto& entry) { return entry.first.ends_with(".qk"); });
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
  // A table of exp and a cap of scores, too, have the kernels for any setting alone (kernels/plan/attention/shape.cc).
  spec.smooths_qk = config.score_cap > 0 || (precision == Precision::kSc && !sc.tables.softmax.name.empty());
  if (precision == Precision::kSc && sc.attention != AttentionMode::kExact) {
    spec.mode = sc.attention;
    spec.dilated = sc.dilated.enabled;
    spec.qk = MakeScOperator(AttentionConfig(sc.at(ScOperatorId::kQk)));
    spec.av = MakeScOperator(AttentionConfig(sc.at(ScOperatorId::kAv)));
    spec.smooths_qk = spec.smooths_qk || SmoothsQk(sc);
    if (HasMxKeys(sc)) spec.key_scales = (config.head_dim + kMxBlock - 1) / kMxBlock;
  }
  return spec;
}

LogitQueryLimits LogitQueryLimitsOf(const DecoderConfig& config, const PassShape& shape) {
  LogitQueryLimits limits;
  limits.vocab_size = config.vocab_size;
  limits.max_picks = MaxPicks(shape);
  limits.max_logprobs = shape.max_rows;
  limits.max_entries = limits.max_picks * (kMaxLogitBiases + std::min(shape.context, config.vocab_size));
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
  if (config.HasBranches() || config.embedding_multiplier != 1) {
    const int64_t heads = config.num_attention_heads + config.num_key_value_heads;
    const int64_t all_heads = divided && config.NormsAllHeads() ? heads * config.head_dim : 0;
    sizes.branch = row_bytes * std::max(config.hidden_size, all_heads);
    sizes.factors = row_bytes * 2;
  }
  if (slots > 0) {
    sizes.router = row_bytes * config.num_experts;
    sizes.chosen = row_bytes * slots;
    sizes.expert_weights = row_bytes * slots;
    sizes.expert_out = row_bytes * slots * shard.hidden.size();
  }
  sizes.head_input = shard.stripe.count == 1   ? sizes.hidden
                     : shard.stripe.index == 0 ? shape.max_logit_rows * 4 * config.hidden_size
                                               : 0;
  sizes.rope = NumRopeTables(config) * RopeRows(shape, shard) * config.head_dim * 4;
  sizes.logits = shape.max_logit_rows * (is_first ? config.vocab_size : shard.vocab.size()) * 4;
  sizes.lanes = shape.lanes;
  return sizes;
}

namespace {

std::vector<ScOperatorId> OperatorsOf(std::span<const BlockLinear> linears) {
  std::vector<ScOperatorId> ids;
  for (const BlockLinear& linear : linears) ids.push_back(OperatorOf(linear.id));
  return ids;
}

std::vector<OperatorGroup> OperatorGroups(const DecoderConfig& config, const DecoderShard& shard, bool has_head) {
  std::vector<OperatorGroup> groups;
  for (const BlockGroup group : kBlockGroups) {
    const auto linears = LinearsOf(*config.architecture, group);
    if (!linears.front().expert.empty() && !config.HasDenseLayers()) continue;
    OperatorGroup own{OperatorsOf(linears), std::string(GroupName(group)), {}, SizeOf(config, linears.front().in)};
    for (const BlockLinear& linear : linears) {
      own.out_features.push_back(RangeOf(config, shard, linear.out).size());
    }
    groups.push_back(std::move(own));
  }
  if (has_head) groups.push_back({{ScOperatorId::kLmHead}, "lm_head", {shard.vocab.size()}, config.hidden_size});
  std::erase_if(groups, [](const OperatorGroup& one) {
    return std::all_of(one.out_features.begin(), one.out_features.end(), [](int64_t rows) { return rows == 0; });
  });
  return groups;
}

// The linears of experts, which GroupScratchBytes does not take.
std::vector<OperatorGroup> ExpertGroups(const DecoderConfig& config, const DecoderShard& shard) {
  std::vector<OperatorGroup> groups;
  for (const BlockGroup group : kBlockGroups) {
    const auto linears = LinearsOf(*config.architecture, group);
    if (linears.front().expert.empty() || !config.HasExperts()) continue;
    // The experts of a token share its row, until each has made one of its own.
    const bool shares = group != BlockGroup::kDown;
    const int64_t slots = config.num_experts_per_tok;
    OperatorGroup own{OperatorsOf(linears), std::string(GroupName(group)) + " of experts", {}, 0, {}};
    own.in_features = SizeOf(config, ExpertAxis(linears.front().in));
    own.of_token = {.rows = shares ? 1 : slots, .row_slots = shares ? slots : 1, .experts = config.num_experts};
    for (const BlockLinear& linear : linears) {
      own.out_features.push_back(RangeOf(config, shard, ExpertAxis(linear.out)).size());
    }
    groups.push_back(std::move(own));
  }
  return groups;
}

// A page of the cache of one device, with what every layer has where they differ.
KvCacheSpec CacheOfPage(const DecoderConfig& config, Precision precision, const ScModelConfig& sc,
                        const DecoderShard& shard) {
  KvCacheSpec spec = MakeKvCacheSpec(config, precision, sc, 1, 1);
  spec.num_kv_heads = static_cast<int>(shard.kv_heads.size());
  spec.stripes = shard.stripe.count;
  if (spec.mode == AttentionMode::kExact) return spec;
  const auto layers = static_cast<int>(config.num_hidden_layers);
  spec.layers = ScPlan(sc, config).AttentionLayers(0, layers);
  if (!spec.layers.empty()) spec.num_layers = layers;
  return spec;
}

// Of layers with experts: the router, and the experts' matrices over every row that they take.
int64_t ExpertScratchBytes(const DecoderConfig& config, Precision precision, const ScModelConfig& sc,
                           const PassShape& shape, const Backend& backend, const DecoderShard& shard) {
  const int64_t experts[] = {config.num_experts};
  int64_t most = backend.LinearScratchBytes({Precision::kFp32, nullptr}, experts, config.hidden_size, shape.max_rows);
  for (const OperatorGroup& group : ExpertGroups(config, shard)) {
    const int64_t rows = shape.max_rows * group.of_token.rows;
    for (const std::vector<LinearSpec>& layer : LayerSpecs(config, precision, sc, {group.ids.data(), 1})) {
      most = std::max(most, backend.ExpertScratchBytes(layer.front(), group.in_features, rows));
    }
  }
  return most;
}

// Of tables of functions in front of linears: their widest rows.
int64_t FunctionScratchBytes(const DecoderConfig& config, const ScModelConfig& sc, const PassShape& shape,
                             const Backend& backend) {
  if (sc.tables.silu.name.empty() && sc.tables.rms_norm.name.empty()) return 0;
  const int64_t of_experts = config.HasExperts() ? config.num_experts_per_tok * config.moe_intermediate_size : 0;
  const int64_t widest[] = {std::max({config.hidden_size, config.intermediate_size, of_experts})};
  return backend.LinearScratchBytes({Precision::kFp32, nullptr}, widest, widest[0], shape.max_rows);  // rows of floats
}

}  // namespace

int64_t RingBytes(const DecoderConfig& config, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                  const Backend& backend, const DecoderShard& shard) {
  if (shard.stripe.count == 1 || shard.kv_heads.empty()) return 0;
  const PassLimits limits{shape.max_rows, shape.max_sequences, PagesOf(shape.context)};
  return backend.RingScratchBytes(CacheOfPage(config, precision, sc, shard), static_cast<int>(shard.heads.size()),
                                  limits);
}

int64_t ScratchBytes(const DecoderConfig& config, Precision precision, const ScModelConfig& sc, const PassShape& whole,
                     const Backend& backend, const DecoderShard& shard, bool has_head) {
  const PassShape shape = ShapeOn(whole, shard);
  int64_t most = 0;
  for (const OperatorGroup& group : OperatorGroups(config, shard, has_head)) {
    const bool is_head = group.ids.front() == ScOperatorId::kLmHead;
    const int64_t tokens = is_head ? shape.max_logit_rows : shape.max_rows;
    most = std::max(most, GroupScratchBytes(group, LayerSpecs(config, precision, sc, group.ids), tokens, backend));
  }
  if (config.HasExperts()) most = std::max(most, ExpertScratchBytes(config, precision, sc, shape, backend, shard));
  if (!shard.heads.empty() && !shard.kv_heads.empty()) {
    most = std::max(most, backend.AttentionScratchBytes(CacheOfPage(config, precision, sc, shard),
                                                        static_cast<int>(shard.heads.size()),
                                                        {shape.max_rows, shape.max_sequences, PagesOf(shape.context)}));
  }
  if (precision == Precision::kSc) most += FunctionScratchBytes(config, sc, shape, backend);
  return backend.AllocatedBytes(most);
}

std::vector<OperatorKernels> KernelsOf(const DecoderConfig& config, Precision precision, const ScModelConfig& sc,
                                       const Backend& backend, const DecoderShard& shard,
                                       std::span<const int64_t> tokens) {
  std::vector<OperatorKernels> result;
  for (const OperatorGroup& group : OperatorGroups(config, shard, true)) {
    const std::vector<std::vector<LinearSpec>> layers = LayerSpecs(config, precision, sc, group.ids);
    OperatorKernels& row = result.emplace_back(OperatorKernels{group.op, {}});
    for (const int64_t count : tokens) row.kernels.push_back(GroupKernels(group, layers, count, backend));
    if (group.ids.front() != ScOperatorId::kQProj) continue;
    OperatorKernels& attention = result.emplace_back(OperatorKernels{"attention", {}});
    const KvCacheSpec cache = CacheOfPage(config, precision, sc, shard);
    for (const int64_t count : tokens) {
      attention.kernels.push_back(backend.AttentionKernel(cache, static_cast<int>(shard.heads.size()), count,
                                                          count > kStepTokens, config.windows));
    }
  }
  for (const OperatorGroup& group : ExpertGroups(config, shard)) {
    const std::vector<std::vector<LinearSpec>> layers = LayerSpecs(config, precision, sc, group.ids);
    OperatorKernels& row = result.emplace_back(OperatorKernels{group.op, {}});
    for (const int64_t count : tokens) row.kernels.push_back(GroupKernels(group, layers, count, backend));
  }
  return result;
}

namespace {

// The memory of one shard, part by part.
class ShardPlanner {
 public:
  ShardPlanner(const ModelFiles& files, Precision precision, const ScModelConfig& sc, const PassShape& shape,
               const Backend& backend, std::span<const DecoderShard> shards, size_t index)
      : files_(files),
        config_(files.config),
        precision_(precision),
        sc_(sc),
        shape_(shape),
        backend_(backend),
        shard_(shards[index]),
        index_(index),
        sharers_(shards.size() / static_cast<size_t>(shard_.stripe.count)) {}

  MemoryPlan Plan() {
    // Window modes on a GPU quantize into codes that all layers share: a second layer costs less than the first.
    const int64_t layer_kv_bytes = KvBytes(2) - KvBytes(1);
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
      MemoryBytes layer = BlockBytes(i);
      layer.kv_cache = layer_kv_bytes;
      plan_.layers.push_back(layer);
    }
    plan_.rest = HeadBytes();
    plan_.rest.kv_cache = KvBytes(1) - layer_kv_bytes;
    plan_.rest += EmbeddingBytes();
    plan_.rest.workspace = WorkspaceBytes();
    plan_.rest.runtime =
        backend_.info(backend_.devices()[std::min(index_, backend_.devices().size() - 1)]).runtime_bytes;
    plan_.total = plan_.rest;
    for (const MemoryBytes& layer : plan_.layers) plan_.total += layer;
    return plan_;
  }

 private:
  // layer: -1 of the LM head.
  bool IsSc(int64_t layer, ScOperatorId id) const {
    return precision_ == Precision::kSc && (id != ScOperatorId::kLmHead || sc_.sc_lm_head) &&
           sc_.at(static_cast<int>(layer), id).arith != ScArith::kFp;
  }

  MemoryBytes MatrixBytes(int64_t layer, const DeviceMatrix& matrix) const {
    const int64_t wanted = matrix.wanted.size();
    if (IsSc(layer, matrix.id)) return ScBytes(wanted, matrix.cols, sc_.at(static_cast<int>(layer), matrix.id));
    MemoryBytes bytes;
    const WeightSource source = SliceRows(files_.weights->Matrix(matrix.tensor, matrix.rows, matrix.cols), 0, wanted);
    bytes.weights = ExactBytes(backend_, source, precision_);
    const bool is_head = matrix.id == ScOperatorId::kLmHead && precision_ != Precision::kFp16;
    if (is_head && IsFixedPoint(ExactHead(), {&source, 1})) bytes.scales = wanted * static_cast<int64_t>(sizeof(float));
    return bytes;
  }

  int64_t KvBytes(int layers) const {
    KvCacheSpec spec = MakeKvCacheSpec(config_, precision_, sc_, layers, NumPages(shape_));
    spec.num_kv_heads = static_cast<int>(shard_.kv_heads.size());
    spec.stripes = shard_.stripe.count;
    return spec.num_kv_heads > 0 ? backend_.KvCacheBytes(spec) : 0;
  }

  // Adds the matrices of a group, or of one expert's, which share a buffer. Returns their bytes without its padding.
  int64_t AddGroup(int64_t layer, std::span<const BlockLinear> linears, int64_t expert, MemoryBytes* to) const {
    int64_t bytes = 0;
    for (const DeviceMatrix& matrix : BlockMatrices(config_, shard_, layer, linears, expert)) {
      const MemoryBytes part = MatrixBytes(layer, matrix);
      *to += part;
      bytes += part.weights + part.scales;
    }
    to->weights += backend_.AllocatedBytes(bytes) - bytes;
    return bytes;
  }

  int64_t ExpertBytes(int64_t layer, std::span<const BlockLinear> linears, MemoryBytes* to) const {
    int64_t bytes = 0;
    for (int64_t expert = 0; expert < config_.num_experts; ++expert) bytes += AddGroup(layer, linears, expert, to);
    return bytes / config_.num_experts * config_.num_experts_per_tok;
  }

  bool HasQkSmooth(int64_t layer) const {
    return sc_.files.smooth != nullptr && sc_.attention != AttentionMode::kExact &&
           sc_.files.smooth->scales.contains(std::to_string(layer) + ".qk");
  }

  // Matrices, router, biases and norms of a layer; its KV cache is not in it.
  MemoryBytes BlockBytes(int64_t layer) {
    MemoryBytes block;
    for (const BlockVector& vector : config_.architecture->vectors) block.weights += SizeOf(config_, vector.length) * 4;
    for (const BlockGroup group : kBlockGroups) {
      const auto linears = LinearsOf(*config_.architecture, group);
      if (config_.HasExperts(layer) && !linears.front().expert.empty()) {
        plan_.decode_stream_bytes += ExpertBytes(layer, linears, &block);
        continue;
      }
      plan_.decode_stream_bytes += AddGroup(layer, linears, -1, &block);
      if (!config_.HasBias(group)) continue;
      block.weights += BiasSize(config_, shard_, linears) * 4;
    }
    if (precision_ == Precision::kSc && HasQkSmooth(layer))
      block.weights += shard_.kv_heads.size() * config_.head_dim * 4;
    if (!config_.HasExperts(layer)) return block;
    const DeviceMatrix router = RouterMatrix(config_, layer);
    const int64_t bytes =
        ExactBytes(backend_, files_.weights->Matrix(router.tensor, router.rows, router.cols), Precision::kFp32);
    block.weights += backend_.AllocatedBytes(bytes);
    plan_.decode_stream_bytes += bytes;
    return block;
  }

  // The LM head and the final norm.
  MemoryBytes HeadBytes() {
    const int64_t hidden = config_.hidden_size;
    MemoryBytes head =
        MatrixBytes(-1, {ScOperatorId::kLmHead, HeadTensor(files_), config_.vocab_size, hidden, shard_.vocab});
    const int64_t bytes = head.weights + head.scales;
    plan_.decode_stream_bytes += bytes;
    const bool is_exact = precision_ != Precision::kFp16 && !IsSc(-1, ScOperatorId::kLmHead);
    const int64_t screen = is_exact ? backend_.ScreenBytes(shard_.vocab.size(), hidden, head.scales > 0) : 0;
    head.weights += backend_.AllocatedBytes(bytes + screen) - bytes + hidden * 4;
    return head;
  }

  // The embedding of the first device of a layer; a tied exact head is the embedding, unless it is in pieces.
  MemoryBytes EmbeddingBytes() const {
    MemoryBytes embedding;
    const bool is_head = SharesHead(config_, sharers_ > 1 || shard_.stripe.index > 0, IsSc(-1, ScOperatorId::kLmHead));
    if (is_head || index_ % sharers_ != 0) return embedding;
    (backend_.keeps_embedding_on_host() ? embedding.host : embedding.embedding) =
        ExactBytes(backend_, files_.weights->Matrix(EmbeddingTensor(files_), config_.vocab_size, config_.hidden_size),
                   Precision::kFp32);
    return embedding;
  }

  // Activations, logits, what logits are compared with, scratch of ops. The first device's are those of the LM head.
  int64_t WorkspaceBytes() {
    const bool is_first = index_ == 0;
    const WorkspaceSizes sizes = MakeWorkspaceSizes(config_, shape_, shard_, sharers_ > 1, is_first);
    const int64_t scratch = ScratchBytes(config_, precision_, sc_, shape_, backend_, shard_, true);
    const int64_t queries = backend_.AllocatedBytes(backend_.LogitQueryBytes(LogitQueryLimitsOf(config_, shape_)));
    const int64_t base = backend_.AllocatedBytes(shape_.base_rows * config_.vocab_size * 4);
    const int64_t compared = is_first ? shape_.lanes * queries + base : 0;
    const int64_t ring = backend_.AllocatedBytes(RingBytes(config_, precision_, sc_, shape_, backend_, shard_));
    plan_.head_workspace =
        sizes.head() + compared + scratch - ScratchBytes(config_, precision_, sc_, shape_, backend_, shard_, false);
    const int64_t hardware =
        precision_ == Precision::kSc ? HardwareTableBytes(config_, sc_, NumPages(shape_) * kKvPageTokens) : 0;
    return sizes.total() + compared + scratch + ring + hardware;
  }

  const ModelFiles& files_;
  const DecoderConfig& config_;
  Precision precision_;
  const ScModelConfig& sc_;
  const PassShape& shape_;
  const Backend& backend_;
  const DecoderShard& shard_;
  size_t index_;
  size_t sharers_;  // devices that share a layer
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan PlanMemory(const ModelFiles& files, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                      const Backend& backend) {
  const Device alone;
  return PlanShard(files, precision, sc, shape, backend, DivideRows(files.config, {&alone, 1}), 0);
}

MemoryPlan PlanShard(const ModelFiles& files, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                     const Backend& backend, std::span<const DecoderShard> shards, size_t index) {
  if (precision == Precision::kSc) Validate(sc);
  return ShardPlanner(files, precision, sc, shape, backend, shards, index).Plan();
}

}  // namespace stoch
