// SPDX-License-Identifier: Apache-2.0
#include "research/call_geometry.h"

#include <algorithm>
#include <utility>

#include "models/sc_plan.h"

namespace stoch {
namespace {

// The operators of a layer in the order in which they run.
std::vector<ScOperatorId> LayerOrder(const DecoderConfig& config) {
  std::vector<ScOperatorId> order;
  for (const BlockLinear& linear : config.architecture->linears) {
    if (linear.group == BlockGroup::kO) {
      order.push_back(ScOperatorId::kQk);
      order.push_back(ScOperatorId::kAv);
    }
    order.push_back(OperatorOf(linear.id));
  }
  return order;
}

ProductKind KindOf(const ScConfig& config) {
  if (config.arith == ScArith::kFp) return ProductKind::kFp;
  if (config.arith == ScArith::kFp8E4m3) return ProductKind::kE4m3;
  if (config.arith == ScArith::kMxInt8) return ProductKind::kMxInt8;
  if (IntBits(config.arith) > 0) return ProductKind::kInteger;
  return config.gate == ScGate::kTable ? ProductKind::kTable : ProductKind::kStreams;
}

void SetLengths(const CallLengths& lengths, TraceCall* call) {
  call->lengths = lengths.values;
  call->per_row = lengths.per_row;
}

TraceCall LinearProduct(const ModelOperator& op, int64_t rows, int64_t d_in) {
  TraceCall call;
  call.block = op.layer;
  call.op = op.name;
  call.rows = rows * op.row_factor;
  call.d_in = d_in;
  call.d_out = op.d_out;
  call.chunk_d = op.config.chunk_d;
  call.stoc_len = op.config.stoc_len;
  return call;
}

}  // namespace

std::vector<ModelOperator> ListModelOperators(const DecoderConfig& config, const ScModelConfig& sc) {
  const ScPlan plan(sc, config);
  std::vector<ModelOperator> operators;
  const auto add = [&](int layer, ScOperatorId id) -> ModelOperator& {
    ModelOperator op;
    op.layer = layer;
    op.id = id;
    op.name = ScOperatorName(id);
    op.is_attention = id == ScOperatorId::kQk || id == ScOperatorId::kAv;
    const bool exact = op.is_attention && sc.attention == AttentionMode::kExact;
    const bool exact_head = id == ScOperatorId::kLmHead && !sc.sc_lm_head;
    if (!exact && !exact_head) op.kind = KindOf(layer < 0 ? sc.at(id) : sc.at(layer, id));
    if (op.kind != ProductKind::kFp) op.config = Resolve(plan.Config(layer, id));
    op.mixed = op.kind == ProductKind::kStreams && layer >= 0 && sc.files.mp != nullptr;
    return operators.emplace_back(std::move(op));
  };
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const ScOperatorId id : LayerOrder(config)) {
      ModelOperator& op = add(layer, id);
      op.window = config.WindowOf(layer);
      const std::string name = op.name;
      bool is_sparse = false;
      for (const BlockLinear& linear : config.architecture->linears) {
        if (OperatorOf(linear.id) != id) continue;
        const bool of_experts = config.HasExperts(layer) && !linear.expert.empty();
        if (of_experts) op.row_factor = config.num_experts_per_tok;
        is_sparse = of_experts;
        op.d_in = SizeOf(config, of_experts ? ExpertAxis(linear.in) : linear.in);
        op.d_out = SizeOf(config, of_experts ? ExpertAxis(linear.out) : linear.out);
      }
      if (sc.files.smooth != nullptr) {
        op.smoothed = sc.files.smooth->scales.count(std::to_string(layer) + '.' + name) != 0;
      }
      if (op.is_attention) continue;
      const auto count = [&](int64_t expert) {
        const std::vector<int32_t>* own = op.mixed ? plan.ProtectedChannels(layer, name, expert) : nullptr;
        return own == nullptr ? 0 : static_cast<int64_t>(own->size());
      };
      const int64_t experts = is_sparse ? config.num_experts : 0;
      for (int64_t expert = 0; expert < experts; ++expert) op.protected_of_experts.push_back(count(expert));
      if (!op.mixed) continue;
      if (experts == 0) op.protected_channels = count(-1);
      op.protected_len = sc.files.mp->protected_len;
    }
  }
  ModelOperator& head = add(-1, ScOperatorId::kLmHead);
  head.d_in = config.hidden_size;
  head.d_out = config.vocab_size;
  return operators;
}

std::vector<TraceCall> CallGeometry::Calls(const ModelOperator& op, const CallShape& shape,
                                           const std::map<LengthsKey, CallLengths>& lengths) const {
  const int64_t rows = op.layer < 0 ? shape.head_rows : shape.rows;
  if (rows == 0) return {};
  if (!op.mixed && op.is_attention) return AttentionCalls(op, shape);
  if (!op.mixed) return {LinearProduct(op, rows, op.d_in)};
  if (op.of_experts()) return ExpertCalls(op, lengths);
  std::vector<TraceCall> calls;
  if (!op.is_attention) {
    if (op.protected_channels > 0) {
      calls.push_back(LinearProduct(op, rows, op.protected_channels));
      calls.back().stoc_len = op.protected_len;
    }
    const int64_t rest = op.d_in - op.protected_channels;
    if (rest > 0) {
      calls.push_back(LinearProduct(op, rows, rest));
      SetLengths(lengths.at({op.layer, op.id, -1}), &calls.back());
    }
    return calls;
  }
  const int64_t group = config_.num_attention_heads / config_.num_key_value_heads;
  for (int64_t head = 0; head < config_.num_attention_heads; ++head) {
    TraceCall& call = calls.emplace_back(AttentionCall(op, shape));
    call.unit = head;
    call.batch = 1;
    call.codes = head % group == 0 ? call.codes / config_.num_key_value_heads : 0;
    SetLengths(lengths.at({op.layer, op.id, head}), &call);
  }
  return calls;
}

std::vector<TraceCall> CallGeometry::ExpertCalls(const ModelOperator& op,
                                                 const std::map<LengthsKey, CallLengths>& lengths) const {
  std::vector<TraceCall> calls;
  const auto add = [&](int64_t expert, int64_t rows, int64_t d_in) -> TraceCall& {
    TraceCall& call = calls.emplace_back(LinearProduct(op, 1, d_in));
    call.unit = expert;
    call.rows = rows;
    return call;
  };
  const auto experts = static_cast<int64_t>(op.protected_of_experts.size());
  for (int64_t expert = 0; expert < experts; ++expert) {
    const auto found = lengths.find({op.layer, op.id, expert});
    if (found == lengths.end()) continue;
    const int64_t rows = static_cast<int64_t>(found->second.values.size()) / found->second.per_row;
    const int64_t own = op.protected_of_experts[static_cast<size_t>(expert)];
    if (own > 0) add(expert, rows, own).stoc_len = op.protected_len;
    if (op.d_in > own) SetLengths(found->second, &add(expert, rows, op.d_in - own));
  }
  return calls;
}

Int128 CallGeometry::Macs(const ModelOperator& op, const CallShape& shape) const {
  if (!op.is_attention) {
    const int64_t rows = op.layer < 0 ? shape.head_rows : shape.rows * op.row_factor;
    return static_cast<Int128>(rows) * op.d_in * op.d_out;
  }
  Int128 macs = 0;
  for (const TraceCall& call : AttentionCalls(op, shape)) {
    for (const TraceRecord& record : RecordsOf(call)) macs += record.macs;
  }
  return macs;
}

std::vector<TraceCall> CallGeometry::AttentionCalls(const ModelOperator& op, const CallShape& shape) const {
  const TraceCall all = AttentionCall(op, shape);
  if (dilated_.empty()) return {all};
  const int64_t group = config_.num_attention_heads / config_.num_key_value_heads;
  std::vector<TraceCall> calls;
  std::vector<int64_t> kv_heads;  // the last one of each call
  for (int64_t head = 0; head < config_.num_attention_heads; ++head) {
    size_t i = 0;
    while (i < calls.size() && !AdmitAlike(dilated_, calls[i].head, head)) ++i;
    if (i == calls.size()) {
      TraceCall& call = calls.emplace_back(all);
      call.dilated = dilated_;
      call.head = head;
      call.batch = 0;
      call.codes = 0;
      const int64_t first = op.window > 0 ? std::max<int64_t>(0, shape.start + 1 - op.window) : 0;
      const int64_t read = CountAdmitted(dilated_, head, shape.start, shape.start + shape.rows - 1, first);
      (op.id == ScOperatorId::kQk ? call.d_out : call.d_in) = std::max<int64_t>(1, read);
      kv_heads.push_back(-1);
    }
    TraceCall& call = calls[i];
    ++call.batch;
    if (kv_heads[i] == head / group) continue;
    kv_heads[i] = head / group;  // read once for all of its heads
    call.codes += config_.head_dim * (op.id == ScOperatorId::kQk ? call.d_out : call.d_in);
  }
  return calls;
}

// Of all heads.
TraceCall CallGeometry::AttentionCall(const ModelOperator& op, const CallShape& shape) const {
  const bool is_qk = op.id == ScOperatorId::kQk;
  const bool whole = mode_ == AttentionMode::kPerHead || mode_ == AttentionMode::kPerRow;
  const int64_t positions = shape.start + shape.rows;
  TraceCall call;
  call.block = op.layer;
  call.op = op.name;
  call.rows = shape.rows;
  call.batch = config_.num_attention_heads;
  call.head_dim = config_.head_dim;
  call.stoc_len = op.kind == ProductKind::kStreams ? op.config.stoc_len : 1;
  int64_t seen = positions;  // by one row
  int64_t read = positions;  // by all rows
  if (!whole) {
    call.causal = true;
    call.start = shape.start;
    call.window = op.window;
    if (op.window > 0) {
      seen = std::min(positions, op.window);
      read = std::min(positions, op.window + shape.rows - 1);
    }
  }
  call.d_in = is_qk ? config_.head_dim : seen;
  call.d_out = is_qk ? seen : config_.head_dim;
  call.codes = config_.num_key_value_heads * config_.head_dim * read;
  return call;
}

}  // namespace stoch
