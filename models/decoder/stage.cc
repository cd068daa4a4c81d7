// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/stage.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "models/sc_plan.h"

namespace stoch {
namespace {

// A dense F32 matrix in a buffer, behind `first` floats.
TensorView MatrixIn(const Buffer& buffer, int64_t rows, int64_t cols, int64_t first = 0) {
  STOCH_CHECK((first + rows * cols) * 4 <= static_cast<int64_t>(buffer.bytes()));
  return MakeView(static_cast<char*>(buffer.data()) + first * 4, DType::kF32, buffer.device(), rows, cols);
}

TensorView Columns(const TensorView& matrix, const IndexRange& range, int64_t scale = 1) {
  return Slice(matrix, 1, range.begin * scale, range.size() * scale);
}

// out = x @ weights^T, every weight of the group on its own columns of `out`.
LinearCall ProjectGroup(const OpSite& site, const TensorView& x, const LinearGroup& group, const TensorView& out) {
  LinearCall call;
  call.site = site;
  call.x = x;
  int64_t begin = 0;
  for (const auto& weight : group.weights) {
    call.weights.push_back(weight.get());
    call.outs.push_back(Slice(out, 1, begin, weight->rows()));
    begin += weight->rows();
  }
  STOCH_CHECK(begin == out.dim(1));
  return call;
}

// The same for the experts of a group.
ExpertLinearCall ProjectExperts(const OpSite& site, const TensorView& x, const TensorView& chosen,
                                const ExpertGroup& group, const TensorView& out) {
  ExpertLinearCall call;
  call.site = site;
  call.x = x;
  call.chosen = chosen;
  int64_t begin = 0;
  for (const auto& experts : group.weights) {
    call.weights.push_back(experts.get());
    call.outs.push_back(Slice(out, 1, begin, experts->rows()));
    begin += experts->rows();
  }
  STOCH_CHECK(begin == out.dim(1));
  return call;
}

// A device has some of the heads, so no length may depend on all of them.
void CheckHeadsAlone(const KvCacheSpec::Products& products) {
  for (const ScExtrasPtr& extras : {products.qk_extras, products.av_extras}) {
    const bool alone = extras == nullptr || extras->lengths == nullptr ||
                       extras->lengths->normalise == ScNormalise::kFixed ||
                       extras->lengths->scope == ScLengthScope::kFractions;
    if (alone) continue;
    throw InvalidInput(
        "normalise=call places a row of qk and av between the extremes of all heads, which devices that share a layer "
        "do "
        "not have: give --split layer, or a table with metric_lo and metric_hi");
  }
}

}  // namespace

DecoderStage::DecoderStage(Backend& backend, const DecoderConfig& config, const DecoderOptions& options,
                           const DecoderWeights& weights, std::span<const DecoderShard> shards, size_t first_shard,
                           std::span<DecoderWorkspace* const> workspaces, const Role& role)
    : backend_(backend),
      config_(config),
      options_(options),
      dilated_(options.precision == Precision::kSc ? options.sc.DilatedPairs() : std::vector<DilatedPair>{}),
      weights_(weights),
      first_shard_(first_shard),
      role_(role),
      rows_alone_(options.precision != Precision::kSc || IsChunkInvariant(options.sc)) {
  for (const DecoderShard& shard : shards) devices_.push_back(shard.device);
  STOCH_CHECK(workspaces.size() == shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    Part& part = parts_.emplace_back();
    part.shard = shards[i];
    part.workspace = workspaces[i];
    part.passes.resize(static_cast<size_t>(options.shape.lanes));
    if (role.num_layers == 0 || part.shard.kv_heads.empty()) continue;
    KvCacheSpec spec = MakeKvCacheSpec(config, options.precision, options.sc, role.num_layers, NumPages(options.shape));
    spec.num_kv_heads = static_cast<int>(part.shard.kv_heads.size());
    spec.stripes = part.shard.stripe.count;
    if (spec.mode != AttentionMode::kExact) {
      ScPlan plan(options.sc, config);
      CheckBackend(backend, {Precision::kSc, spec.qk}, "qk");
      CheckBackend(backend, {Precision::kSc, spec.av}, "av");
      if (plan.has_attention_layers() && !backend.has_extras()) CheckBackend(backend, {Precision::kSc, nullptr}, "qk");
      if (plan.has_attention_layers()) {
        for (int layer = 0; layer < role.num_layers; ++layer) {
          spec.layers.push_back(plan.Attention(role.first_layer + layer));
          if (shards.size() > 1) CheckHeadsAlone(spec.layers.back());
        }
      }
    }
    part.cache = backend.MakeKvCache(part.shard.device, spec);
    kv_cache_bytes_ += part.cache->bytes();
  }
}

void DecoderStage::Upload(size_t lane, size_t index, const PassLayout& layout) {
  const PassShape& shape = options_.shape;
  const int64_t pages_per_sequence = PagesOf(shape.context);
  for (Part& part : parts_) {
    std::vector<std::unique_ptr<Pass>>& passes = part.passes[lane];
    while (passes.size() <= index) {
      const int64_t max_rows = ShapeOn(shape, part.shard).max_rows;
      passes.push_back(backend_.MakePass(part.shard.device, {max_rows, shape.max_sequences, pages_per_sequence}));
    }
    backend_.UploadPass(*passes[index], layout);
  }
}

TensorView DecoderStage::Hidden(const Part& part, const Piece& piece) const {
  return Slice(MatrixIn(part.workspace->hidden[piece.lane], piece.first_row + piece.rows, config_.hidden_size), 0,
               piece.first_row, piece.rows);
}

TensorView DecoderStage::Logits(size_t lane, int64_t count) const {
  return MatrixIn(parts_[0].workspace->logits[lane], count, config_.vocab_size);
}

void DecoderStage::Receive(const Piece& piece, const TensorView& hidden) {
  for (const Part& part : parts_) backend_.Copy(Hidden(part, piece), hidden);
}

void DecoderStage::CopyHidden(const HiddenTap& tap, int layers, const Piece& piece) {
  if (tap.layers != layers) return;
  backend_.CopyToHost(tap.rows + piece.first_row * config_.hidden_size, Hidden(piece));
}

void DecoderStage::Run(const Piece& piece, const HiddenTap& tap) {
  if (role_.embeds) {
    Embed(piece);
    CopyHidden(tap, 0, piece);
  }
  for (int i = 0; i < role_.num_layers; ++i) {
    const bool is_last = role_.has_head && i + 1 == role_.num_layers;
    const bool only_outputs = is_last && piece.outputs < piece.rows && !WantsAllRows(tap) && HasRoomForOutputs(piece);
    Attend(i, piece, only_outputs);
    if (only_outputs) return EndOutputs(i, piece, HeadInput(piece.lane, piece.first_output, piece.outputs));
    EndLayer(i, piece);
    CopyHidden(tap, role_.first_layer + i + 1, piece);
  }
  if (!role_.has_head || piece.outputs == 0) return;
  for (Part& part : parts_) {
    const TensorView inputs =
        MatrixIn(part.workspace->head_input[piece.lane], piece.first_output + piece.outputs, config_.hidden_size);
    backend_.SelectRows(part.pass(piece), Hidden(part, piece), Slice(inputs, 0, piece.first_output, piece.outputs));
  }
}

void DecoderStage::Embed(const Piece& piece) {
  const int stripe = parts_[0].shard.stripe.index;
  const EmbeddingTable& table =
      stripe == 0 ? *weights_.embedding : *weights_.more_embeddings[static_cast<size_t>(stripe - 1)];
  backend_.Embed(table, parts_[0].pass(piece), Hidden(piece));
  if (!divided()) return;
  AllGatherCall spread;
  spread.site = {-1, "embed"};
  for (const Part& part : parts_) {
    spread.to.push_back(Hidden(part, piece));
    spread.from.push_back(spread.from.empty() ? spread.to[0] : Slice(spread.to.back(), 1, 0, 0));
  }
  backend_.AllGather(spread);
}

std::span<const DecoderLayerShard> DecoderStage::ShardsOfLayer(int cache_layer) const {
  const auto index = static_cast<size_t>(role_.first_layer) + static_cast<size_t>(cache_layer);
  const std::span<const DecoderLayerShard> all = weights_.layers[index].shards;
  return all.subspan(first_shard_, parts_.size());
}

bool DecoderStage::WantsAllRows(const HiddenTap& tap) const {
  return !rows_alone_ || tap.layers == config_.num_hidden_layers || backend_.is_observed();
}

void DecoderStage::Attend(int cache_layer, const Piece& piece, bool only_outputs) {
  const std::span<const DecoderLayerShard> shards = ShardsOfLayer(cache_layer);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].shard.heads.empty()) continue;
    AttentionCall call = Project(parts_[i], shards[i], cache_layer, piece);
    const NormHeadsCall norm = NormOf(cache_layer, shards[i], call);
    if (norm.head_dim > 0 && piece.rows > 0) call.norm = &norm;
    call.only_outputs = only_outputs;
    backend_.Attention(call);
  }
}

std::vector<AttentionCall> DecoderStage::BeginLayer(int cache_layer, const Piece& piece) {
  const std::span<const DecoderLayerShard> shards = ShardsOfLayer(cache_layer);
  std::vector<AttentionCall> calls;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].shard.heads.empty()) {
      calls.emplace_back();
      continue;
    }
    calls.push_back(Project(parts_[i], shards[i], cache_layer, piece));
    const NormHeadsCall norm = NormOf(cache_layer, shards[i], calls.back());
    if (norm.head_dim > 0 && piece.rows > 0) backend_.NormHeads(norm);
  }
  return calls;
}

void DecoderStage::EndLayer(int cache_layer, const Piece& piece) {
  const int64_t q_cols = config_.num_attention_heads * config_.head_dim;
  LayerRows rows;
  for (const Part& part : parts_) {
    rows.hidden.push_back(Hidden(part, piece));
    rows.attended.push_back(MatrixIn(part.workspace->attention, piece.rows, q_cols));
  }
  EndLayer(cache_layer, rows);
}

bool DecoderStage::HasRoomForOutputs(const Piece& piece, bool with_hidden) const {
  const int64_t row = config_.num_attention_heads * config_.head_dim + (with_hidden ? config_.hidden_size : 0);
  const int64_t bytes = piece.outputs * row * 4;
  return std::all_of(parts_.begin(), parts_.end(),
                     [bytes](const Part& part) { return bytes <= static_cast<int64_t>(part.workspace->qkv.bytes()); });
}

std::vector<TensorView> DecoderStage::OutputRows(const Piece& piece) const {
  const int64_t attended = piece.outputs * config_.num_attention_heads * config_.head_dim;
  std::vector<TensorView> rows;
  for (const Part& part : parts_) {
    rows.push_back(MatrixIn(part.workspace->qkv, piece.outputs, config_.hidden_size, attended));
  }
  return rows;
}

void DecoderStage::EndOutputs(int cache_layer, const Piece& piece, const std::vector<TensorView>& hidden) {
  if (piece.outputs == 0) return;
  const int64_t q_cols = config_.num_attention_heads * config_.head_dim;
  LayerRows rows;
  rows.hidden = hidden;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    backend_.SelectRows(part.pass(piece), Hidden(part, piece), rows.hidden[i]);
    rows.attended.push_back(MatrixIn(part.workspace->qkv, piece.outputs, q_cols));
    if (part.shard.heads.empty()) continue;
    const TensorView all = MatrixIn(part.workspace->attention, piece.rows, q_cols);
    backend_.SelectRows(part.pass(piece), Columns(all, part.shard.heads, config_.head_dim),
                        Columns(rows.attended[i], part.shard.heads, config_.head_dim));
  }
  EndLayer(cache_layer, rows);
}

void DecoderStage::EndLayer(int cache_layer, const LayerRows& rows) {
  const int index = role_.first_layer + cache_layer;
  const std::span<const DecoderLayerShard> shards = ShardsOfLayer(cache_layer);
  GatherColumns({index, "attention"}, rows.attended, &DecoderShard::heads, config_.head_dim);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].shard.hidden.empty()) continue;
    const OpSite site{index, GroupName(BlockGroup::kO)};
    const TensorView out = Columns(rows.hidden[i], parts_[i].shard.hidden);
    LinearCall project = ProjectGroup(site, rows.attended[i], shards[i].group(BlockGroup::kO), out);
    project.add_to_out = true;
    backend_.Linear(project);
    AddBias(site, out, shards[i].bias(BlockGroup::kO));
  }
  GatherColumns({index, GroupName(BlockGroup::kO)}, rows.hidden, &DecoderShard::hidden, 1);

  const bool sparse = config_.HasExperts(index);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (sparse) {
      ChooseExperts(parts_[i], shards[i], index, rows.hidden[i]);
    } else {
      ProjectGateUp(parts_[i], shards[i], index, rows.hidden[i]);
    }
  }
  GatherActivation(index, rows.hidden.front().dim(0));
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (sparse) {
      CombineExperts(parts_[i], shards[i], index, rows.hidden[i]);
    } else {
      ProjectDown(parts_[i], shards[i], index, rows.hidden[i]);
    }
  }
  GatherColumns({index, GroupName(BlockGroup::kDown)}, rows.hidden, &DecoderShard::hidden, 1);
}

void DecoderStage::AddBias(const OpSite& site, const TensorView& x, const Buffer& bias) {
  if (bias.bytes() == 0) return;
  backend_.AddBias({site, x, MakeView(bias.data(), DType::kF32, x.device, x.dim(1))});
}

AttentionCall DecoderStage::Project(Part& part, const DecoderLayerShard& weights, int cache_layer, const Piece& piece) {
  const int index = role_.first_layer + cache_layer;
  const int64_t q_cols = part.shard.heads.size() * config_.head_dim;
  const int64_t kv_cols = part.shard.kv_heads.size() * config_.head_dim;
  const TensorView qkv = MatrixIn(part.workspace->qkv, piece.rows, q_cols + 2 * kv_cols);
  const OpSite site{index, GroupName(BlockGroup::kQkv)};

  if (piece.rows > 0) {
    LinearCall project = ProjectGroup(site, Hidden(part, piece), weights.group(BlockGroup::kQkv), qkv);
    AddNorm(project, weights.vector(VectorId::kInputNorm));
    backend_.Linear(project);
    AddBias(site, qkv, weights.bias(BlockGroup::kQkv));
  }

  AttentionCall attention;
  attention.site = {index, "attention"};
  attention.q = Slice(qkv, 1, 0, q_cols);
  attention.k = Slice(qkv, 1, q_cols, kv_cols);
  attention.v = Slice(qkv, 1, q_cols + kv_cols, kv_cols);
  attention.rope = MatrixIn(part.workspace->rope, RopeRows(options_.shape, part.shard), config_.head_dim);
  attention.cache = part.cache.get();
  attention.cache_layer = cache_layer;
  attention.pass = piece.rows > 0 ? &part.pass(piece) : nullptr;
  attention.num_heads = static_cast<int>(part.shard.heads.size());
  attention.window = static_cast<int>(config_.WindowOf(index));
  attention.dilated = dilated_;
  attention.first_head = part.shard.heads.begin;
  attention.out =
      Columns(MatrixIn(part.workspace->attention, piece.rows, config_.num_attention_heads * config_.head_dim),
              part.shard.heads, config_.head_dim);
  return attention;
}

NormHeadsCall DecoderStage::NormOf(int cache_layer, const DecoderLayerShard& weights,
                                   const AttentionCall& attention) const {
  const Buffer& q_norm = weights.vector(VectorId::kQNorm);
  const Buffer& k_norm = weights.vector(VectorId::kKNorm);
  NormHeadsCall norm;
  if (q_norm.bytes() == 0) return norm;
  norm.site = {role_.first_layer + cache_layer, GroupName(BlockGroup::kQkv)};
  norm.head_dim = config_.head_dim;
  norm.eps = static_cast<float>(config_.rms_norm_eps);
  norm.q = attention.q;
  norm.k = attention.k;
  norm.q_weight = MakeView(q_norm.data(), DType::kF32, attention.q.device, config_.head_dim);
  norm.k_weight = MakeView(k_norm.data(), DType::kF32, attention.k.device, config_.head_dim);
  return norm;
}

void DecoderStage::ProjectGateUp(Part& part, const DecoderLayerShard& weights, int layer, const TensorView& hidden) {
  if (part.shard.intermediate.empty()) return;
  const OpSite site{layer, GroupName(BlockGroup::kGateUp)};
  const TensorView out = MatrixIn(part.workspace->gate_up, hidden.dim(0), 2 * part.shard.intermediate.size());
  LinearCall project = ProjectGroup(site, hidden, weights.group(BlockGroup::kGateUp), out);
  AddNorm(project, weights.vector(VectorId::kPostAttentionNorm));
  backend_.Linear(project);
  AddBias(site, out, weights.bias(BlockGroup::kGateUp));
}

void DecoderStage::ProjectDown(Part& part, const DecoderLayerShard& weights, int layer, const TensorView& hidden) {
  if (part.shard.hidden.empty()) return;
  const int64_t cols = config_.intermediate_size;
  const TensorView out = Columns(hidden, part.shard.hidden);
  const OpSite site{layer, GroupName(BlockGroup::kDown)};
  const LinearGroup& down = weights.group(BlockGroup::kDown);
  LinearCall project;
  if (divided()) {
    project = ProjectGroup(site, MatrixIn(part.workspace->activation, hidden.dim(0), cols), down, out);
  } else {
    const TensorView gate_up = MatrixIn(part.workspace->gate_up, hidden.dim(0), 2 * cols);
    project = ProjectGroup(site, Slice(gate_up, 1, 0, cols), down, out);
    project.prologue = Prologue::kSiluMul;
    project.x2 = Slice(gate_up, 1, cols, cols);
  }
  project.add_to_out = true;
  backend_.Linear(project);
  AddBias(site, out, weights.bias(BlockGroup::kDown));
}

DecoderStage::Routing DecoderStage::RoutingOf(const Part& part, int64_t rows) const {
  const int64_t slots = config_.num_experts_per_tok;
  const DecoderWorkspace& workspace = *part.workspace;
  return {MakeView(workspace.chosen.data(), DType::kI32, part.shard.device, rows, slots),
          MatrixIn(workspace.expert_weights, rows, slots)};
}

// Every device routes every row, so that none waits for another's choice.
void DecoderStage::ChooseExperts(Part& part, const DecoderLayerShard& weights, int layer, const TensorView& hidden) {
  const Buffer& norm = weights.vector(VectorId::kPostAttentionNorm);
  const Routing routing = RoutingOf(part, hidden.dim(0));
  const OpSite site{layer, "router"};
  LinearCall router;
  router.site = site;
  router.x = hidden;
  AddNorm(router, norm);
  router.weights = {weights.router.get()};
  router.outs = {MatrixIn(part.workspace->router, hidden.dim(0), config_.num_experts)};
  backend_.Route({site, router.outs.front(), config_.norm_topk_prob, routing.chosen, routing.weights, &router});

  if (part.shard.expert_intermediate.empty()) return;
  const TensorView out = MatrixIn(part.workspace->gate_up, hidden.dim(0) * config_.num_experts_per_tok,
                                  2 * part.shard.expert_intermediate.size());
  ExpertLinearCall project = ProjectExperts({layer, GroupName(BlockGroup::kGateUp)}, hidden, routing.chosen,
                                            weights.expert_group(BlockGroup::kGateUp), out);
  AddNorm(project, norm);
  backend_.ExpertLinear(project);
}

void DecoderStage::CombineExperts(Part& part, const DecoderLayerShard& weights, int layer, const TensorView& hidden) {
  if (part.shard.hidden.empty()) return;
  const int64_t cols = config_.moe_intermediate_size;
  const int64_t rows = hidden.dim(0) * config_.num_experts_per_tok;
  const Routing routing = RoutingOf(part, hidden.dim(0));
  const OpSite site{layer, GroupName(BlockGroup::kDown)};
  const TensorView out = MatrixIn(part.workspace->expert_out, rows, part.shard.hidden.size());
  const ExpertGroup& down = weights.expert_group(BlockGroup::kDown);
  ExpertLinearCall project;
  if (divided()) {
    project = ProjectExperts(site, MatrixIn(part.workspace->activation, rows, cols), routing.chosen, down, out);
  } else {
    const TensorView gate_up = MatrixIn(part.workspace->gate_up, rows, 2 * cols);
    project = ProjectExperts(site, Slice(gate_up, 1, 0, cols), routing.chosen, down, out);
    project.prologue = Prologue::kSiluMul;
    project.x2 = Slice(gate_up, 1, cols, cols);
  }
  const CombineExpertsCall combine{site, out, routing.weights, Columns(hidden, part.shard.hidden)};
  project.combine = &combine;
  backend_.ExpertLinear(project);
}

void DecoderStage::GatherColumns(const OpSite& site, std::vector<TensorView> whole, IndexRange DecoderShard::*range,
                                 int64_t scale) {
  if (!divided()) return;
  AllGatherCall gather;
  gather.site = site;
  for (size_t i = 0; i < parts_.size(); ++i) gather.from.push_back(Columns(whole[i], parts_[i].shard.*range, scale));
  gather.to = std::move(whole);
  backend_.AllGather(gather);
}

void DecoderStage::GatherActivation(int layer, int64_t rows) {
  if (!divided()) return;
  const bool sparse = config_.HasExperts(layer);
  const int64_t gathered_rows = sparse ? rows * config_.num_experts_per_tok : rows;
  AllGatherCall gather;
  gather.site = {layer, GroupName(BlockGroup::kGateUp)};
  gather.prologue = Prologue::kSiluMul;
  for (const Part& part : parts_) {
    const int64_t cols = (sparse ? part.shard.expert_intermediate : part.shard.intermediate).size();
    const TensorView gate_up = MatrixIn(part.workspace->gate_up, gathered_rows, 2 * cols);
    gather.from.push_back(Slice(gate_up, 1, 0, cols));
    gather.from2.push_back(Slice(gate_up, 1, cols, cols));
    gather.to.push_back(MatrixIn(part.workspace->activation, gathered_rows,
                                 sparse ? config_.moe_intermediate_size : config_.intermediate_size));
  }
  backend_.AllGather(gather);
}

template <typename Call>
void DecoderStage::AddNorm(Call& call, const Buffer& weight) const {
  call.prologue = Prologue::kRmsNorm;
  call.norm_weight = MakeView(weight.data(), DType::kF32, call.x.device, config_.hidden_size);
  call.norm_eps = static_cast<float>(config_.rms_norm_eps);
}

std::vector<TensorView> DecoderStage::HeadInput(size_t lane, int64_t first, int64_t count) const {
  std::vector<TensorView> inputs;
  for (const Part& part : parts_) {
    inputs.push_back(
        Slice(MatrixIn(part.workspace->head_input[lane], first + count, config_.hidden_size), 0, first, count));
  }
  return inputs;
}

void DecoderStage::RunHead(size_t lane, int64_t first, int64_t count, int64_t output_rows) {
  STOCH_CHECK(role_.has_head);
  AllGatherCall gather;
  gather.site = {-1, "lm_head"};
  gather.to = {Logits(lane, count)};
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const IndexRange& vocab = part.shard.vocab;
    gather.from.push_back(i == 0 ? Columns(gather.to[0], vocab)
                                 : MatrixIn(part.workspace->logits[lane], count, vocab.size()));
    if (vocab.empty()) continue;
    LinearCall project;
    project.site = gather.site;
    project.x = Slice(MatrixIn(part.workspace->head_input[lane], output_rows, config_.hidden_size), 0, first, count);
    AddNorm(project, weights_.head[i].final_norm);
    project.weights = {weights_.head[i].lm_head.get()};
    project.outs = {gather.from.back()};
    backend_.Linear(project);
  }
  if (divided()) backend_.AllGather(gather);
}

void DecoderStage::AnswerQueries(size_t lane, int64_t first, int64_t count, const QueryRange& picks,
                                 const QueryRange& logprobs) {
  const LogitRows logits{Logits(lane, count), first};
  if (picks.count > 0) backend_.PickTokens(logits, queries(lane), picks);
  if (logprobs.count > 0) backend_.LogProbs(logits, queries(lane), logprobs);
}

}  // namespace stoch
