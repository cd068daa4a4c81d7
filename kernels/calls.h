// SPDX-License-Identifier: Apache-2.0
// The ops: what each computes, on which shapes, in which order of sums. Contract as kernels/backend.h says.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/tensor_view.h"
#include "kernels/dilated.h"
#include "kernels/handles.h"
#include "kernels/logit_comparison.h"

namespace stoch {

// Named for error messages: which layer (-1: none) and operator a call belongs to.
struct OpSite {
  int layer = -1;
  std::string_view op;
};

struct AllGatherCall;
struct NonlinearTable;

// A prologue may have a table (kernels/math/nonlinear_table.h) in place of its function: 1 / sqrt or SiLU.
enum class Prologue : uint8_t {
  kNone,
  kRmsNorm,  // x * (1 / sqrt(mean(x^2) + eps)) * norm_weight, rounded as (x * r) * w
  kSiluMul,  // Silu(x) * x2
};

// For every weight i: out_i = f(x) @ weight_i^T, or out_i = out_i + that product, f = the prologue.
// Shapes:   x, x2 F32 [rows, cols]; norm_weight F32 [cols]; out_i F32 [rows, weight_i.rows()].
// Requires: all weights share cols; x, x2 and outs have dense rows (any row stride) and do not overlap.
// Bits:     kSc: docs/sc_arithmetic.md#5-back-to-real-numbers exactly; one row's result depends on that row alone when
//           its spec is per_row without row groups. kFp32: dot products in kDotLanes order, or those of
//           math/fixed_point.h where the weight multiplies as integers.
struct LinearCall {
  OpSite site;
  Device device() const { return x.device; }
  Prologue prologue = Prologue::kNone;
  TensorView x, x2;
  TensorView norm_weight;
  float norm_eps = 0;
  const NonlinearTable* table = nullptr;  // in place of the prologue's function
  std::vector<const LinearWeight*> weights;
  std::vector<TensorView> outs;
  bool add_to_out = false;
  // Only the largest output of every row, and which ones are as large, are wanted: others may be any finite number
  // below it. Requires: without add_to_out.
  bool only_largest = false;
  // FaultRow of every row of x, where a weight draws faults by row; else empty.
  std::span<const uint64_t> fault_rows = {};
  // Where given, the outputs are what this device gives to that exchange. It is issued once every device has issued the
  // op that makes what it gives; then, on each device, an op that reads `to` as its x. Where every device's op said so,
  // columns of `to` that others give may be there for that one op alone.
  const AllGatherCall* gather = nullptr;
};

struct NormHeadsCall;

// RoPE on q and k, append k and v to the cache, then causal attention of every row over its sequence.
// Shapes:   q F32 [rows, num_heads * head_dim]; k, v F32 [rows, num_kv_heads * head_dim]; q and k are overwritten;
//           rope F32 [max_positions, head_dim]: cos of pairs 0..head_dim/2-1, then sin; out F32 [rows, num_heads *
//           head_dim]. Query head h reads KV head h / (num_heads / num_kv_heads). Rotation pairs are (i, i +
//           head_dim/2): x1' = (x1 * cos) - (x2 * sin), x2' = (x2 * cos) + (x1 * sin), every product and sum rounded.
// Bits:     score = (SC or exact q k) * float(1 / sqrt(head_dim)); softmax: m = max over the causal positions,
//           e = Exp(s - m), sum in kRowLanes order by absolute position, p = e / sum; then p v as the mode says
//           (exact: kDotLanes order by absolute position). Modes: docs/sc_arithmetic.md#6-in-the-model.
struct AttentionCall {
  OpSite site;
  Device device() const { return q.device; }
  TensorView q, k, v;
  TensorView rope;
  KvCache* cache = nullptr;
  int cache_layer = 0;  // index within the cache
  const Pass* pass = nullptr;
  int num_heads = 0;
  TensorView out;
  // Sliding window: the row at position i sees positions t with i - t < window; 0: every t <= i. A position outside has
  // a score of -inf, so p = 0; lanes, masks and scopes go by absolute position as without a window.
  int window = 0;
  // Dilated attention, of a cache whose spec says dilated; empty: none. A row sees the positions that the pairs admit to
  // its query head, first_head + index in the call, and its window too; one that k pairs admit has k * e for e. out = 0
  // where none is.
  std::span<const DilatedPair> dilated = {};
  int64_t first_head = 0;
  // F32 [num_kv_heads, head_dim], or empty: after RoPE, q / s and k * s are quantized in place of q and k, every number
  // rounded once. Requires: mode is not kExact. Lengths of rows go by q.
  TensorView qk_smooth;
  // Where given, that op precedes as part of this one, and what is in q and k then is not specified. Requires: norm->q is
  // q, norm->k is k.
  const NormHeadsCall* norm = nullptr;
  // In place of Exp of the softmax: e = max(table(s - m), 0), and 0 where s is -inf.
  const NonlinearTable* exp_table = nullptr;
  // Scores become SoftCap(score, score_cap) of math/gated.h before the softmax; 0: they stay. Requires: a cache whose spec
  // says smooths_qk.
  float score_cap = 0;
  // As of a LinearCall.
  const AllGatherCall* gather = nullptr;
  // Rows of `out` that are no output rows of the pass may be left as they are. Requires: kPerToken or kExact.
  bool only_outputs = false;
};

// x[r, i] = x[r, i] + bias[i], rounded once, in place.
// Shapes: x F32 [rows, n], dense rows, any row stride; bias F32 [n].
struct AddBiasCall {
  OpSite site;
  Device device() const { return x.device; }
  TensorView x;
  TensorView bias;
};

// x[r, i] = GeluTanh(x[r, i]) * x2[r, i] (math/gated.h), the product rounded, in place: what SiLU makes in other families is
// there a prologue of the next linear.
// Shapes: x, x2 F32 [rows, n], dense rows, any row stride, apart from each other.
struct GeluMulCall {
  OpSite site;
  Device device() const { return x.device; }
  TensorView x;
  TensorView x2;
};

// x[r, i] = SoftCap(x[r, i], cap) (math/gated.h), in place.
// Shapes: x F32 [rows, n], dense rows, any row stride. Requires: cap > 0.
struct SoftCapCall {
  OpSite site;
  Device device() const { return x.device; }
  TensorView x;
  float cap = 0;
};

// RMSNorm of every head of q and of k, in place: x * (1 / sqrt(mean(x^2) + eps)) * weight over head_dim, rounded as
// (x * r) * w. Qwen3 does it between the projections and RoPE.
// Shapes: q F32 [rows, heads * head_dim], k F32 [rows, kv_heads * head_dim], dense rows, any row stride; q_weight,
//         k_weight F32 [head_dim].
// Bits:   the sum of squares in kRowLanes order.
struct NormHeadsCall {
  OpSite site;
  Device device() const { return q.device; }
  int64_t head_dim = 0;
  float eps = 0;
  TensorView q, k;
  TensorView q_weight, k_weight;
  const NonlinearTable* table = nullptr;  // in place of 1 / sqrt
};

// ---------------------------------------------------------------------------------------------------- experts ----
// A mixture of experts: every row takes top_k of a layer's feed-forward networks. Slot s = row * top_k + rank is the
// row's expert of that rank, the most probable first; slots have fixed places, so that nothing waits for the choice.

// The router: p = softmax(logits[row]), the top_k largest p, ties to the lower index, and their weights: p, or where
// `normalize` is set p / (p_0 + p_1 + ...).
// Shapes: logits F32 [rows, experts]; chosen I32 [rows, top_k]; weights F32 [rows, top_k]; all dense.
// Bits:   softmax as in attention (Exp(x - max), sum in kRowLanes order, e / sum); the sum of the chosen p from rank 0
//         on.
//
// Where `product` is given, the linear that makes the logits is part of the op: few rows then take one kernel for all.
// Requires: product->outs is {logits}.
struct RouteCall {
  OpSite site;
  Device device() const { return logits.device; }
  TensorView logits;
  bool normalize = false;
  TensorView chosen;
  TensorView weights;
  const LinearCall* product = nullptr;
};

struct CombineExpertsCall;

// out_i[s] = f(x of slot s) @ weight_i[chosen[s]]^T for every slot s; f and the products are those of LinearCall.
// Shapes:   x, x2 F32 [rows, cols], which all slots of a row share, or F32 [rows * top_k, cols]; chosen I32 [rows,
//           top_k], dense; out_i F32 [rows * top_k, weight_i.rows()].
// Requires: chosen is what Route wrote. As LinearCall otherwise; where scopes of activations hold several rows, they
//           are the slots of one expert in ascending order.
//
// Where `combine` is given, that op follows as part of this one, and what is in `outs` then is not specified.
// Requires: one weight; combine->x is outs[0], combine->out overlaps neither x nor x2.
struct ExpertLinearCall {
  OpSite site;
  Device device() const { return x.device; }
  Prologue prologue = Prologue::kNone;
  TensorView x, x2;
  TensorView norm_weight;
  float norm_eps = 0;
  const NonlinearTable* table = nullptr;  // in place of the prologue's function
  TensorView chosen;
  std::vector<const ExpertWeights*> weights;
  std::vector<TensorView> outs;
  std::span<const uint64_t> fault_rows = {};  // numbers of the rows of `chosen`, as in LinearCall
  const CombineExpertsCall* combine = nullptr;
};

// Matrices of an ExpertLinearCall that one launch takes: every expert has `matrices` of them, all of one shape.
struct ExpertShape {
  int64_t rows = 0;       // rows of x
  int64_t row_slots = 1;  // slots that share a row of x
  int64_t experts = 0;
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t matrices = 1;  // 1..4
  int64_t slots() const { return rows * row_slots; }
};

// out[r] = out[r] + ((w_0 x_0 + w_1 x_1) + w_2 x_2 ...) over the slots of row r in order of rank, every product and
// sum rounded.
// Shapes: x F32 [rows * top_k, n]; weights F32 [rows, top_k], dense; out F32 [rows, n].
struct CombineExpertsCall {
  OpSite site;
  Device device() const { return out.device; }
  TensorView x;
  TensorView weights;
  TensorView out;
};

// ------------------------------------------------------------------------------------------------- evaluation ----

// How far rows of logits are from those of a base run: the KL divergence of each, and what both say of a target token.
// Shapes:   logits, base F32 [rows, vocab_size]; targets I32 [rows], ids of the vocabulary; out U8 [rows,
//           sizeof(LogitComparison)], one LogitComparison a row (logit_comparison.h). Targets and out are dense; all may
//           be memory of AllocateShared.
// Requires: dense rows of logits and base (any row stride); out aligned as a LogitComparison, and apart from the others.
//           Targets are the caller's to check: of one outside of the vocabulary both log-probabilities are NaN.
// Bits:     log-probabilities are those of Backend::LogProbs: (logit - m) - Log(s) in double, m the largest logit, s the
//           sum of Exp(logit - m) in kRowLanes order; kld is the sum of DivergenceTerm in double, in kRowLanes order.
//           NaN is kComparisonNan.
struct CompareLogitsCall {
  OpSite site;
  Device device() const { return logits.device; }
  TensorView logits;
  TensorView base;
  TensorView targets;
  TensorView out;
};

// How data of an AllGather travels: the backend's choice, or what a check asks for (InvalidInput if that is not
// there).
enum class AllGatherRoute : uint8_t { kAuto, kDirect, kNccl };

// An exchange: what every device computed, side by side, on every device that wants it. Columns of `to` are those of
// f(from_0), f(from_1), ... in order, f the prologue of one value: kNone or kSiluMul.
// Shapes:   from_i, from2_i (kSiluMul) F32 [rows, n_i], n_i = 0 where a device gives nothing; to_j F32 [rows, sum of
//           n_i]. Dense rows, any row stride.
// Requires: each device is named once in `from`, and at most once in `to`, where no other device is. from_i may be its
//           own columns of the `to` of its device (kNone); outputs overlap nothing else.
// Bits:     values are moved, never added up.
// Async:    an op of every device in `from`: in order with the ops issued before and after on each.
//
// Ops that make what devices give may be told of it (LinearCall::gather): they may then bring it to the others themselves.
struct AllGatherCall {
  OpSite site;
  Prologue prologue = Prologue::kNone;
  AllGatherRoute route = AllGatherRoute::kAuto;
  std::vector<TensorView> from, from2;
  std::vector<TensorView> to;
  const NonlinearTable* table = nullptr;  // in place of the prologue's function
};

// The ops that run on one device and take one struct: OP(Linear) stands for Linear(const LinearCall&). Backends declare
// and dispatch them by this list (cpu/ops.h, cuda/runtime/ops.h), and what wraps a backend forwards them by it.
#define STOCH_FOR_EACH_OP(OP) \
  OP(Linear)                  \
  OP(Attention)               \
  OP(AddBias)                 \
  OP(NormHeads)               \
  OP(GeluMul)                 \
  OP(SoftCap)                 \
  OP(Route)                   \
  OP(ExpertLinear)            \
  OP(CombineExperts)          \
  OP(CompareLogits)

}  // namespace stoch
