// SPDX-License-Identifier: Apache-2.0
// The ops of a layer, on every device of a stage.
#include <utility>

#include "kernels/base/check.h"
#include "models/decoder/layer_calls.h"
#include "models/decoder/stage.h"

namespace stoch {
namespace {

// Every weight of the group on its own columns of `out`. A LinearCall and a LinearGroup, or the same of experts.
template <typename Group, typename Call>
void AddGroup(const Group& group, const TensorView& out, Call* call) {
  int64_t begin = 0;
  for (const auto& weight : group.weights) {
    call->weights.push_back(weight.get());
    call->outs.push_back(Slice(out, 1, begin, weight->rows()));
    begin += weight->rows();
  }
  STOCH_CHECK(begin == out.dim(1));
}

// out = x @ weights^T
LinearCall ProjectGroup(const OpSite& site, const TensorView& x, const LinearGroup& group, const TensorView& out) {
  LinearCall call;
  call.site = site;
  call.x = x;
  AddGroup(group, out, &call);
  return call;
}

// The same by the experts of a group.
ExpertLinearCall ProjectExperts(const OpSite& site, const TensorView& x, const TensorView& chosen,
                                const ExpertGroup& group, const TensorView& out) {
  ExpertLinearCall call;
  call.site = site;
  call.x = x;
  call.chosen = chosen;
  AddGroup(group, out, &call);
  return call;
}

}  // namespace

std::span<const DecoderLayerShard> DecoderStage::ShardsOfLayer(int cache_layer) const {
  const auto index = static_cast<size_t>(role_.first_layer) + static_cast<size_t>(cache_layer);
  const std::span<const DecoderLayerShard> all = weights_.layers[index].shards;
  return all.subspan(first_shard_, parts_.size());
}

void DecoderStage::Attend(int cache_layer, const Piece& piece, bool only_outputs) {
  const std::span<const DecoderLayerShard> shards = ShardsOfLayer(cache_layer);
  const AllGatherCall gather = GatherOfHeads(cache_layer, Attended(piece));
  std::vector<AttentionCall> projected;
  if (config_.NormsAllHeads()) projected = ProjectAll(cache_layer, piece);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].shard.heads.empty()) continue;
    AttentionCall call = projected.empty() ? Project(parts_[i], shards[i], cache_layer, piece) : projected[i];
    const NormHeadsCall norm = NormOf(cache_layer, shards[i], call);
    if (norm.head_dim > 0 && piece.rows > 0) call.norm = &norm;
    call.only_outputs = only_outputs;
    if (divided() && !only_outputs) call.gather = &gather;
    backend_.Attention(call);
  }
}

std::vector<AttentionCall> DecoderStage::BeginLayer(int cache_layer, const Piece& piece) {
  const std::span<const DecoderLayerShard> shards = ShardsOfLayer(cache_layer);
  std::vector<AttentionCall> calls = ProjectAll(cache_layer, piece);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].shard.heads.empty()) continue;
    const NormHeadsCall norm = NormOf(cache_layer, shards[i], calls[i]);
    if (norm.head_dim > 0 && piece.rows > 0) backend_.NormHeads(norm);
  }
  return calls;
}

std::vector<AttentionCall> DecoderStage::ProjectAll(int cache_layer, const Piece& piece) {
  const std::span<const DecoderLayerShard> shards = ShardsOfLayer(cache_layer);
  std::vector<AttentionCall> calls(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i].shard.heads.empty()) calls[i] = Project(parts_[i], shards[i], cache_layer, piece);
  }
  if (config_.NormsAllHeads() && piece.rows > 0) NormAllHeads(cache_layer, piece, calls);
  return calls;
}

// In place; where devices have some of the heads, in copies of all of them, which attention then reads its own of.
void DecoderStage::NormAllHeads(int cache_layer, const Piece& piece, std::span<AttentionCall> calls) {
  const std::span<const DecoderLayerShard> shards = ShardsOfLayer(cache_layer);
  const OpSite site{role_.first_layer + cache_layer, GroupName(BlockGroup::kQkv)};
  const auto norm = [&](TensorView AttentionCall::*rows, VectorId id, IndexRange DecoderShard::*heads, int64_t count,
                        int64_t first) {
    if (!divided()) return NormRows(site, calls.front().*rows, shards.front().vector(id));
    AllGatherCall gather;
    gather.site = site;
    for (size_t i = 0; i < parts_.size(); ++i) {
      gather.to.push_back(
          MatrixIn(parts_[i].workspace->branch, piece.rows, count * config_.head_dim, piece.rows * first));
      const bool has_heads = !parts_[i].shard.heads.empty();
      gather.from.push_back(has_heads ? calls[i].*rows : Slice(gather.to.back(), 1, 0, 0));
    }
    backend_.AllGather(gather);
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].shard.heads.empty()) continue;
      NormRows(site, gather.to[i], shards[i].vector(id));
      calls[i].*rows = Columns(gather.to[i], parts_[i].shard.*heads, config_.head_dim);
    }
  };
  const int64_t heads = config_.num_attention_heads;
  norm(&AttentionCall::q, VectorId::kQNorm, &DecoderShard::heads, heads, 0);
  norm(&AttentionCall::k, VectorId::kKNorm, &DecoderShard::kv_heads, config_.num_key_value_heads,
       heads * config_.head_dim);
}

// A norm of one head as wide as the row, and of no k.
void DecoderStage::NormRows(const OpSite& site, const TensorView& x, const Buffer& weight) {
  NormHeadsCall norm;
  norm.site = site;
  norm.head_dim = x.dim(1);
  norm.eps = static_cast<float>(config_.rms_norm_eps);
  norm.q = x;
  norm.k = Slice(x, 1, 0, 0);
  norm.q_weight = MakeView(weight.data(), DType::kF32, x.device, x.dim(1));
  norm.k_weight = norm.q_weight;
  norm.table = tables_.rms_norm.table.get();
  backend_.NormHeads(norm);
}

TensorView DecoderStage::FactorsOf(const Part& part, int64_t rows, bool of_embedding) const {
  const Buffer& factors = part.workspace->factors;
  const auto max_rows = static_cast<int64_t>(factors.bytes()) / 8;
  return MatrixIn(factors, rows, 1, of_embedding ? max_rows : 0);
}

void DecoderStage::AddScaled(const OpSite& site, const TensorView& x, const TensorView& factors,
                             const TensorView& out) {
  backend_.CombineExperts({site, x, factors, out});
}

std::vector<TensorView> DecoderStage::BranchesOf(const std::vector<TensorView>& hidden) const {
  if (!config_.HasBranches()) return hidden;
  std::vector<TensorView> branches;
  for (size_t i = 0; i < parts_.size(); ++i) {
    branches.push_back(MatrixIn(parts_[i].workspace->branch, hidden[i].dim(0), config_.hidden_size));
  }
  return branches;
}

void DecoderStage::AddBranches(const OpSite& site, VectorId norm, int cache_layer,
                               const std::vector<TensorView>& branches, const std::vector<TensorView>& hidden) {
  if (!config_.HasBranches()) return;
  const std::span<const DecoderLayerShard> shards = ShardsOfLayer(cache_layer);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Buffer& weight = shards[i].vector(norm);
    if (weight.bytes() > 0) NormRows(site, branches[i], weight);
    AddScaled(site, branches[i], FactorsOf(parts_[i], hidden[i].dim(0), false), hidden[i]);
  }
}

std::vector<TensorView> DecoderStage::Attended(const Piece& piece) const {
  std::vector<TensorView> attended;
  for (const Part& part : parts_) {
    attended.push_back(MatrixIn(part.workspace->attention, piece.rows, config_.num_attention_heads * config_.head_dim));
  }
  return attended;
}

void DecoderStage::EndLayer(int cache_layer, const Piece& piece, bool is_followed) {
  LayerRows rows;
  for (const Part& part : parts_) rows.hidden.push_back(Hidden(part, piece));
  rows.attended = Attended(piece);
  rows.fault_rows = FaultRowsOf(piece).all;
  EndLayer(cache_layer, rows, is_followed);
}

void DecoderStage::EndOutputs(int cache_layer, const Piece& piece, const std::vector<TensorView>& hidden) {
  if (piece.outputs == 0) return;
  const int64_t q_cols = config_.num_attention_heads * config_.head_dim;
  LayerRows rows;
  rows.hidden = hidden;
  rows.fault_rows = FaultRowsOf(piece).outputs;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    backend_.SelectRows(part.pass(piece), Hidden(part, piece), rows.hidden[i]);
    rows.attended.push_back(MatrixIn(part.workspace->qkv, piece.outputs, q_cols));
    if (part.shard.heads.empty()) continue;
    const TensorView all = MatrixIn(part.workspace->attention, piece.rows, q_cols);
    backend_.SelectRows(part.pass(piece), Columns(all, part.shard.heads, config_.head_dim),
                        Columns(rows.attended[i], part.shard.heads, config_.head_dim));
  }
  EndLayer(cache_layer, rows, false);
}

void DecoderStage::EndLayer(int cache_layer, const LayerRows& all_rows, bool is_followed) {
  const int index = role_.first_layer + cache_layer;
  const std::span<const DecoderLayerShard> shards = ShardsOfLayer(cache_layer);
  const bool sparse = config_.HasExperts(index);
  const bool has_branches = config_.HasBranches();
  STOCH_CHECK(!sparse || !has_branches);
  LayerRows rows = all_rows;
  rows.branches = BranchesOf(rows.hidden);
  // Linears are told of the exchange behind them where the next op that reads it is a linear, too, and nothing is between.
  const auto announced = [this, has_branches](const AllGatherCall& gather, bool is_read_by_linear, const Buffer& bias) {
    return divided() && is_read_by_linear && !has_branches && bias.bytes() == 0 ? &gather : nullptr;
  };
  Gather(GatherOfHeads(cache_layer, rows.attended));
  const OpSite site{index, GroupName(BlockGroup::kO)};
  const AllGatherCall residual = GatherOfColumns(site, rows.branches, &DecoderShard::hidden, 1);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].shard.hidden.empty()) continue;
    const TensorView out = Columns(rows.branches[i], parts_[i].shard.hidden);
    LinearCall project = ProjectGroup(site, rows.attended[i], shards[i].group(BlockGroup::kO), out);
    project.add_to_out = !has_branches;
    project.fault_rows = rows.fault_rows;
    project.gather = announced(residual, !sparse, shards[i].bias(BlockGroup::kO));
    backend_.Linear(project);
    AddBias(site, out, shards[i].bias(BlockGroup::kO));
  }
  Gather(residual);
  AddBranches(site, VectorId::kAttentionOutNorm, cache_layer, rows.branches, rows.hidden);

  const AllGatherCall activation = GatherOfActivation(index, rows.hidden.front().dim(0));
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (sparse) {
      ChooseExperts(parts_[i], shards[i], index, rows, i);
    } else {
      ProjectGateUp(parts_[i], shards[i], index, rows, i,
                    announced(activation, !config_.HasGelu(), shards[i].bias(BlockGroup::kGateUp)));
    }
  }
  Gather(activation);
  const OpSite down{index, GroupName(BlockGroup::kDown)};
  const AllGatherCall result = GatherOfColumns(down, rows.branches, &DecoderShard::hidden, 1);
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (sparse) {
      CombineExperts(parts_[i], shards[i], index, rows, i);
    } else {
      ProjectDown(parts_[i], shards[i], index, rows, i,
                  announced(result, is_followed, shards[i].bias(BlockGroup::kDown)));
    }
  }
  Gather(result);
  AddBranches(down, VectorId::kMlpOutNorm, cache_layer, rows.branches, rows.hidden);
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
    AddNorm(weights.vector(VectorId::kInputNorm), config_.rms_norm_eps, tables_.rms_norm.table.get(), &project);
    project.fault_rows = FaultRowsOf(piece).all;
    backend_.Linear(project);
    AddBias(site, qkv, weights.bias(BlockGroup::kQkv));
  }

  AttentionCall attention;
  attention.site = {index, "attention"};
  attention.q = Slice(qkv, 1, 0, q_cols);
  attention.k = Slice(qkv, 1, q_cols, kv_cols);
  attention.v = Slice(qkv, 1, q_cols + kv_cols, kv_cols);
  const int64_t positions = RopeRows(options_.shape, part.shard);
  attention.rope = MatrixIn(part.workspace->rope, positions, config_.head_dim,
                            config_.HasMainRope(index) ? 0 : positions * config_.head_dim);
  attention.cache = part.cache.get();
  attention.cache_layer = cache_layer;
  attention.pass = piece.rows > 0 ? &part.pass(piece) : nullptr;
  attention.num_heads = static_cast<int>(part.shard.heads.size());
  attention.window = static_cast<int>(config_.WindowOf(index));
  attention.dilated = dilated_;
  attention.first_head = part.shard.heads.begin;
  attention.exp_table = tables_.softmax.table.get();
  attention.score_cap = static_cast<float>(config_.score_cap);
  if (weights.qk_smooth.bytes() > 0) {
    attention.qk_smooth = MatrixIn(weights.qk_smooth, part.shard.kv_heads.size(), config_.head_dim);
  }
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
  if (q_norm.bytes() == 0 || config_.NormsAllHeads()) return norm;
  norm.site = {role_.first_layer + cache_layer, GroupName(BlockGroup::kQkv)};
  norm.head_dim = config_.head_dim;
  norm.eps = static_cast<float>(config_.rms_norm_eps);
  norm.q = attention.q;
  norm.k = attention.k;
  norm.q_weight = MakeView(q_norm.data(), DType::kF32, attention.q.device, config_.head_dim);
  norm.table = tables_.rms_norm.table.get();
  norm.k_weight = MakeView(k_norm.data(), DType::kF32, attention.k.device, config_.head_dim);
  return norm;
}

void DecoderStage::ProjectGateUp(Part& part, const DecoderLayerShard& weights, int layer, const LayerRows& rows,
                                 size_t device, const AllGatherCall* gather) {
  if (part.shard.intermediate.empty()) return;
  const TensorView& hidden = rows.hidden[device];
  const OpSite site{layer, GroupName(BlockGroup::kGateUp)};
  const TensorView out = MatrixIn(part.workspace->gate_up, hidden.dim(0), 2 * part.shard.intermediate.size());
  LinearCall project = ProjectGroup(site, hidden, weights.group(BlockGroup::kGateUp), out);
  AddNorm(weights.vector(VectorId::kPostAttentionNorm), config_.rms_norm_eps, tables_.rms_norm.table.get(), &project);
  project.fault_rows = rows.fault_rows;
  project.gather = gather;
  backend_.Linear(project);
  AddBias(site, out, weights.bias(BlockGroup::kGateUp));
  if (!config_.HasGelu()) return;
  const int64_t cols = part.shard.intermediate.size();
  backend_.GeluMul({site, Slice(out, 1, 0, cols), Slice(out, 1, cols, cols)});
}

void DecoderStage::ProjectDown(Part& part, const DecoderLayerShard& weights, int layer, const LayerRows& rows,
                               size_t device, const AllGatherCall* gather) {
  if (part.shard.hidden.empty()) return;
  const TensorView& hidden = rows.branches[device];
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
    if (!config_.HasGelu()) {
      project.prologue = Prologue::kSiluMul;
      project.table = tables_.silu.table.get();
      project.x2 = Slice(gate_up, 1, cols, cols);
    }
  }
  project.add_to_out = !config_.HasBranches();
  project.fault_rows = rows.fault_rows;
  project.gather = gather;
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
void DecoderStage::ChooseExperts(Part& part, const DecoderLayerShard& weights, int layer, const LayerRows& rows,
                                 size_t device) {
  const TensorView& hidden = rows.hidden[device];
  const Buffer& norm = weights.vector(VectorId::kPostAttentionNorm);
  const Routing routing = RoutingOf(part, hidden.dim(0));
  const OpSite site{layer, "router"};
  LinearCall router;
  router.site = site;
  router.x = hidden;
  AddNorm(norm, config_.rms_norm_eps, tables_.rms_norm.table.get(), &router);
  router.weights = {weights.router.get()};
  router.outs = {MatrixIn(part.workspace->router, hidden.dim(0), config_.num_experts)};
  backend_.Route({site, router.outs.front(), config_.norm_topk_prob, routing.chosen, routing.weights, &router});

  if (part.shard.expert_intermediate.empty()) return;
  const TensorView out = MatrixIn(part.workspace->gate_up, hidden.dim(0) * config_.num_experts_per_tok,
                                  2 * part.shard.expert_intermediate.size());
  ExpertLinearCall project = ProjectExperts({layer, GroupName(BlockGroup::kGateUp)}, hidden, routing.chosen,
                                            weights.expert_group(BlockGroup::kGateUp), out);
  AddNorm(norm, config_.rms_norm_eps, tables_.rms_norm.table.get(), &project);
  project.fault_rows = rows.fault_rows;
  backend_.ExpertLinear(project);
}

void DecoderStage::CombineExperts(Part& part, const DecoderLayerShard& weights, int layer, const LayerRows& rows,
                                  size_t device) {
  const TensorView& hidden = rows.hidden[device];
  if (part.shard.hidden.empty()) return;
  const int64_t cols = config_.moe_intermediate_size;
  const int64_t slots = hidden.dim(0) * config_.num_experts_per_tok;
  const Routing routing = RoutingOf(part, hidden.dim(0));
  const OpSite site{layer, GroupName(BlockGroup::kDown)};
  const TensorView out = MatrixIn(part.workspace->expert_out, slots, part.shard.hidden.size());
  const ExpertGroup& down = weights.expert_group(BlockGroup::kDown);
  ExpertLinearCall project;
  if (divided()) {
    project = ProjectExperts(site, MatrixIn(part.workspace->activation, slots, cols), routing.chosen, down, out);
  } else {
    const TensorView gate_up = MatrixIn(part.workspace->gate_up, slots, 2 * cols);
    project = ProjectExperts(site, Slice(gate_up, 1, 0, cols), routing.chosen, down, out);
    project.prologue = Prologue::kSiluMul;
    project.table = tables_.silu.table.get();
    project.x2 = Slice(gate_up, 1, cols, cols);
  }
  const CombineExpertsCall combine{site, out, routing.weights, Columns(hidden, part.shard.hidden)};
  project.fault_rows = rows.fault_rows;
  project.combine = &combine;
  backend_.ExpertLinear(project);
}

AllGatherCall DecoderStage::GatherOfColumns(const OpSite& site, std::vector<TensorView> whole,
                                            IndexRange DecoderShard::*range, int64_t scale) const {
  AllGatherCall gather;
  if (!divided()) return gather;
  gather.site = site;
  for (size_t i = 0; i < parts_.size(); ++i) gather.from.push_back(Columns(whole[i], parts_[i].shard.*range, scale));
  gather.to = std::move(whole);
  return gather;
}

AllGatherCall DecoderStage::GatherOfHeads(int cache_layer, const std::vector<TensorView>& attended) const {
  return GatherOfColumns({role_.first_layer + cache_layer, "attention"}, attended, &DecoderShard::heads,
                         config_.head_dim);
}

AllGatherCall DecoderStage::GatherOfActivation(int layer, int64_t rows) const {
  const bool sparse = config_.HasExperts(layer);
  const int64_t gathered_rows = sparse ? rows * config_.num_experts_per_tok : rows;
  AllGatherCall gather;
  if (!divided()) return gather;
  gather.site = {layer, GroupName(BlockGroup::kGateUp)};
  const bool has_gelu = config_.HasGelu();
  if (!has_gelu) {
    gather.prologue = Prologue::kSiluMul;
    gather.table = tables_.silu.table.get();
  }
  for (const Part& part : parts_) {
    const int64_t cols = (sparse ? part.shard.expert_intermediate : part.shard.intermediate).size();
    const TensorView gate_up = MatrixIn(part.workspace->gate_up, gathered_rows, 2 * cols);
    gather.from.push_back(Slice(gate_up, 1, 0, cols));
    if (!has_gelu) gather.from2.push_back(Slice(gate_up, 1, cols, cols));
    gather.to.push_back(MatrixIn(part.workspace->activation, gathered_rows,
                                 sparse ? config_.moe_intermediate_size : config_.intermediate_size));
  }
  return gather;
}

void DecoderStage::Gather(const AllGatherCall& call) {
  if (divided()) backend_.AllGather(call);
}

}  // namespace stoch
