// SPDX-License-Identifier: Apache-2.0
#include "kernels/call_check.h"

#include <utility>

#include "kernels/base/error.h"
#include "kernels/sc/hardware/accumulator.h"
#include "kernels/spec_check.h"

namespace stoch {
namespace {

constexpr OpSite kPassSite{-1, "pass"};

std::string ShapeName(DType dtype, std::initializer_list<int64_t> shape) {
  std::string name(DTypeName(dtype));
  name += '[';
  for (const int64_t size : shape) {
    if (name.back() != '[') name += ", ";
    name += size == kAnySize ? "any" : std::to_string(size);
  }
  return name + ']';
}

// The second operand of the prologue, if it has one.
void CheckPrologue(const LinearCall& call, const Device& device, int64_t tokens, int64_t in_features) {
  switch (call.prologue) {
    case Prologue::kNone: return;
    case Prologue::kRmsNorm:
      return RequireView(call.site, "norm_weight", call.norm_weight, device, DType::kF32, {in_features});
    case Prologue::kSiluMul:
      RequireView(call.site, "x2", call.x2, device, DType::kF32, {tokens, in_features});
      for (const TensorView& out : call.outs) RequireDisjoint(call.site, out, call.x2);
      return;
  }
}

void CheckDilated(const AttentionCall& call) {
  const KvCacheSpec& spec = call.cache->spec();
  if (spec.mode != AttentionMode::kPerToken) {
    Reject(call.site, "dilated attention in a cache of another mode, expected attention = per_token");
  }
  if (!spec.dilated) Reject(call.site, "dilated attention, with a cache that was not made for it");
  if (call.dilated.size() > kMaxDilatedPairs) {
    Reject(call.site, std::to_string(call.dilated.size()) + " pairs of dilated attention, expected at most " +
                          std::to_string(kMaxDilatedPairs));
  }
  for (const DilatedPair& pair : call.dilated) {
    if (pair.segment >= 1 && pair.dilation >= 1) continue;
    Reject(call.site, "a segment of " + std::to_string(pair.segment) + " with dilation " +
                          std::to_string(pair.dilation) + ", expected 1 or more of both");
  }
  if (call.first_head < 0) Reject(call.site, "first head " + std::to_string(call.first_head) + ", expected 0 or more");
  const auto refuses = [&](const ScOperatorPtr& av, const ScExtrasPtr& qk_extras, const ScExtrasPtr& av_extras) {
    if (qk_extras != nullptr || av_extras != nullptr) {
      Reject(call.site, "dilated attention: rows have one stream length");
    }
    if (av->config.arith != ScArith::kSc)
      Reject(call.site, "dilated attention: av has the arithmetic of streams alone");
    if (HasHardware(av->config)) Reject(call.site, "dilated attention: av has no faults, registers and adders");
  };
  if (spec.layers.empty()) return refuses(spec.av, nullptr, nullptr);
  for (const KvCacheSpec::Products& layer : spec.layers) refuses(layer.av, layer.qk_extras, layer.av_extras);
}

// A matrix, or a batch of them.
struct MatmulShape {
  explicit MatmulShape(const TensorView& view)
      : batch(view.rank == 3 ? view.dim(0) : 1), rows(view.dim(view.rank - 2)), cols(view.dim(view.rank - 1)) {}
  int64_t batch, rows, cols;
};

}  // namespace

std::string SiteName(const OpSite& site) {
  return (site.layer >= 0 ? "layer " + std::to_string(site.layer) + " " : std::string()) + std::string(site.op);
}

void Reject(const OpSite& site, const std::string& problem) { throw InvalidInput(SiteName(site) + ": " + problem); }

void RequireView(const OpSite& site, std::string_view name, const TensorView& view, const Device& device, DType dtype,
                 std::initializer_list<int64_t> shape) {
  bool fits = view.dtype == dtype && view.device == device && view.rank == static_cast<int>(shape.size()) &&
              (view.data != nullptr || view.numel() == 0) && view.rows_dense();
  int axis = 0;
  for (const int64_t size : shape) {
    if (fits && size != kAnySize) fits = view.dim(axis) == size;
    ++axis;
  }
  if (fits) return;
  const std::string memory = view.data == nullptr ? " without memory" : "";
  Reject(site, std::string(name) + " is " + Describe(view) + memory + ", expected " + ShapeName(dtype, shape) +
                   " with dense rows on " + DeviceName(device));
}

void RequireDense(const OpSite& site, const TensorView& view) {
  if (!view.is_dense()) Reject(site, Describe(view) + " is not dense");
}

void RequireDisjoint(const OpSite& site, const TensorView& out, const TensorView& other) {
  for (int i = 0; i < out.rank; ++i) {
    if (out.dim(i) > 1 && out.step(i) == 0) Reject(site, "the output " + Describe(out) + " overlaps itself");
  }
  if (MayOverlap(out, other)) {
    Reject(site, "the output " + Describe(out) + " overlaps the operand " + Describe(other));
  }
}

void CheckCopy(const TensorView& to, const TensorView& from) {
  const OpSite site{-1, "copy"};
  RequireDense(site, to);
  RequireDense(site, from);
  if (to.bytes() != from.bytes()) Reject(site, Describe(from) + " does not fit " + Describe(to));
}

void CheckPassLimits(const PassLimits& limits) {
  if (limits.max_rows >= 1 && limits.max_sequences >= 1 && limits.max_pages_per_sequence >= 1) return;
  Reject(kPassSite, "limits of " + std::to_string(limits.max_rows) + " rows, " + std::to_string(limits.max_sequences) +
                        " sequences and " + std::to_string(limits.max_pages_per_sequence) +
                        " pages a sequence, expected at least 1 of each");
}

void CheckPass(const PassLayout& layout, const PassLimits& limits) {
  const auto limit = [](std::string_view what, size_t got, int64_t most) {
    if (static_cast<int64_t>(got) <= most) return;
    Reject(kPassSite, std::to_string(got) + " " + std::string(what) + ", expected at most " + std::to_string(most));
  };
  if (layout.ids.empty()) Reject(kPassSite, "no rows, expected at least one");
  limit("rows", layout.ids.size(), limits.max_rows);
  limit("sequences", layout.sequences.size(), limits.max_sequences);
  limit("output rows", layout.output_rows.size(), static_cast<int64_t>(layout.ids.size()));
  int64_t next_row = 0;
  for (const PassLayout::Sequence& sequence : layout.sequences) {
    limit("pages in a sequence", sequence.pages.size(), limits.max_pages_per_sequence);
    if (sequence.first_row != next_row || sequence.num_rows < 1 || sequence.start_position < 0) {
      Reject(kPassSite, "a sequence of " + std::to_string(sequence.num_rows) + " rows starts at row " +
                            std::to_string(sequence.first_row) + " and position " +
                            std::to_string(sequence.start_position) + ", expected at least one row from row " +
                            std::to_string(next_row) + " and position 0 on");
    }
    next_row += sequence.num_rows;
    for (const int32_t page : sequence.pages) {
      if (page < 0) Reject(kPassSite, "page " + std::to_string(page) + ", expected 0 or more");
    }
  }
  if (next_row != static_cast<int64_t>(layout.ids.size())) {
    Reject(kPassSite, "sequences cover " + std::to_string(next_row) + " rows of " + std::to_string(layout.ids.size()));
  }
  for (const int32_t row : layout.output_rows) {
    if (row < 0 || row >= next_row)
      Reject(kPassSite, "output row " + std::to_string(row) + " is not a row of the pass");
  }
}

void CheckLinear(const LinearCall& call) {
  if (call.weights.empty() || call.weights.size() != call.outs.size()) {
    Reject(call.site, "got " + std::to_string(call.weights.size()) + " weights and " +
                          std::to_string(call.outs.size()) + " outputs, expected as many and at least one");
  }
  const Device device = call.weights.front()->device();
  const int64_t in_features = call.weights.front()->cols();
  RequireView(call.site, "x", call.x, device, DType::kF32, {kAnySize, in_features});
  const int64_t tokens = call.x.dim(0);
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const LinearWeight& weight = *call.weights[i];
    if (weight.device() != device || weight.cols() != in_features) {
      Reject(call.site, "weight " + std::to_string(i) + " has " + std::to_string(weight.cols()) + " columns on " +
                            DeviceName(weight.device()) + ", expected " + std::to_string(in_features) + " on " +
                            DeviceName(device));
    }
    RequireView(call.site, "out", call.outs[i], device, DType::kF32, {tokens, weight.rows()});
    RequireDisjoint(call.site, call.outs[i], call.x);
    for (size_t j = 0; j < i; ++j) RequireDisjoint(call.site, call.outs[i], call.outs[j]);
  }
  CheckPrologue(call, device, tokens, in_features);
}

void CheckAttentionHandles(const AttentionCall& call) {
  if (call.cache == nullptr || call.pass == nullptr) Reject(call.site, "needs a cache and a pass");
}

void CheckAttention(const AttentionCall& call, int64_t tokens) {
  if (call.cache->spec().stripes != 1) {
    Reject(call.site, "the cache has positions of one of " + std::to_string(call.cache->spec().stripes) +
                          " devices, which is for RingAttention");
  }
  CheckAttentionOperands(call, tokens);
}

void CheckAttentionOperands(const AttentionCall& call, int64_t tokens) {
  const Device device = call.cache->device();
  const KvCacheSpec& spec = call.cache->spec();
  if (call.pass->device() != device) {
    Reject(call.site, "the pass is on " + DeviceName(call.pass->device()) + ", expected on " + DeviceName(device) +
                          " as the cache");
  }
  if (call.num_heads < 1 || call.num_heads % spec.num_kv_heads != 0) {
    Reject(call.site,
           std::to_string(call.num_heads) + " heads, expected a multiple of " + std::to_string(spec.num_kv_heads));
  }
  if (call.window < 0) {
    Reject(call.site, "a window of " + std::to_string(call.window) + ", expected 0 (none) or more");
  }
  if (call.score_cap > 0 && !spec.smooths_qk)
    Reject(call.site, "a cap of scores, with a cache that was not made for one");
  if (!call.dilated.empty()) CheckDilated(call);
  if (call.cache_layer < 0 || call.cache_layer >= spec.num_layers) {
    Reject(call.site,
           "cache layer " + std::to_string(call.cache_layer) + ", expected below " + std::to_string(spec.num_layers));
  }
  const int64_t q_cols = static_cast<int64_t>(call.num_heads) * spec.head_dim;
  const int64_t kv_cols = static_cast<int64_t>(spec.num_kv_heads) * spec.head_dim;
  RequireView(call.site, "q", call.q, device, DType::kF32, {tokens, q_cols});
  RequireView(call.site, "k", call.k, device, DType::kF32, {tokens, kv_cols});
  RequireView(call.site, "v", call.v, device, DType::kF32, {tokens, kv_cols});
  RequireView(call.site, "rope", call.rope, device, DType::kF32, {kAnySize, spec.head_dim});
  RequireView(call.site, "out", call.out, device, DType::kF32, {tokens, q_cols});
  for (const TensorView* in : {&call.q, &call.k, &call.v}) RequireDisjoint(call.site, call.out, *in);
}

void CheckAttentionSequence(const AttentionCall& call, int64_t end, int64_t num_pages, const Stripe& stripe) {
  const KvCacheSpec& spec = call.cache->spec();
  const std::string ends = "a sequence ends at position " + std::to_string(end);
  if (end > num_pages * spec.page_tokens) {
    Reject(call.site, ends + ", its pages hold " + std::to_string(num_pages * spec.page_tokens));
  }
  if (stripe.Below(end) > call.rope.dim(0)) {
    Reject(call.site, ends + ", the rope table has " + std::to_string(call.rope.dim(0)) +
                          (stripe.count > 1 ? " of the " + std::to_string(stripe.Below(end)) + " before it" : ""));
  }
  if (spec.mode == AttentionMode::kExact) return;
  const ScOperator& av = spec.layers.empty() ? *spec.av : *spec.layers[static_cast<size_t>(call.cache_layer)].av;
  const bool by_chunk = IntBits(av.config.arith) > 0 || IsNumberFormat(av.config.arith);
  if (!by_chunk) CheckAccumulator(av, end, SiteName(call.site));
}

void CheckAttentionPage(const AttentionCall& call, int64_t page) {
  const int64_t num_pages = call.cache->spec().num_pages;
  if (page >= 0 && page < num_pages) return;
  Reject(call.site, "page " + std::to_string(page) + ", expected below " + std::to_string(num_pages));
}

void CheckEmbed(const EmbeddingTable& table, const Pass& pass, int64_t tokens, const TensorView& out) {
  const OpSite site{-1, "embed"};
  if (pass.device() != table.device()) {
    Reject(site, "the pass is on " + DeviceName(pass.device()) + ", expected on " + DeviceName(table.device()) +
                     " as the table");
  }
  RequireView(site, "out", out, table.device(), DType::kF32, {tokens, table.hidden_size()});
  RequireDisjoint(site, out, TensorView());
}

void CheckSelectRows(const Pass& pass, int64_t tokens, int64_t output_rows, const TensorView& x,
                     const TensorView& out) {
  const OpSite site{-1, "select_rows"};
  RequireView(site, "x", x, pass.device(), DType::kF32, {tokens, kAnySize});
  RequireView(site, "out", out, pass.device(), DType::kF32, {output_rows, x.dim(1)});
  RequireDisjoint(site, out, x);
}

void CheckArgmax(const TensorView& logits, const TensorView& ids) {
  const OpSite site{-1, "argmax"};
  RequireView(site, "logits", logits, logits.device, DType::kF32, {kAnySize, kAnySize});
  if (logits.dim(1) < 1) Reject(site, "logits have no columns");
  RequireView(site, "ids", ids, logits.device, DType::kI32, {logits.dim(0)});
}

void CheckCompareLogits(const CompareLogitsCall& call) {
  const Device device = call.device();
  RequireView(call.site, "logits", call.logits, device, DType::kF32, {kAnySize, kAnySize});
  const int64_t rows = call.logits.dim(0), vocab_size = call.logits.dim(1);
  if (vocab_size < 1) Reject(call.site, "logits have no columns");
  RequireView(call.site, "base", call.base, device, DType::kF32, {rows, vocab_size});
  RequireView(call.site, "targets", call.targets, device, DType::kI32, {rows});
  RequireView(call.site, "out", call.out, device, DType::kU8, {rows, int64_t{sizeof(LogitComparison)}});
  RequireDense(call.site, call.out);
  if (reinterpret_cast<uintptr_t>(call.out.data) % alignof(LogitComparison) != 0) {
    Reject(call.site, "out is not aligned to " + std::to_string(alignof(LogitComparison)) + " bytes");
  }
  for (const TensorView* operand : {&call.logits, &call.base, &call.targets}) {
    RequireDisjoint(call.site, call.out, *operand);
  }
}

void CheckLogitRows(const OpSite& site, const LogitRows& logits, const LogitQueryBuffer& buffer, int64_t vocab_size,
                    const QueryRange& range, int64_t limit) {
  RequireView(site, "logits", logits.view, buffer.device(), DType::kF32, {kAnySize, vocab_size});
  // Not first + count, which may overflow.
  if (range.first >= 0 && range.count >= 0 && range.count <= limit && range.first <= limit - range.count) return;
  Reject(site, std::to_string(range.count) + " queries from " + std::to_string(range.first) + " on, expected within " +
                   std::to_string(limit));
}

void CheckScMatmul(const TensorView& a, const TensorView& b, const ScOperator& op, const TensorView& out) {
  const OpSite site{-1, "sc_matmul"};
  for (const auto& [name, view] : {std::pair{"a", &a}, {"b", &b}, {"out", &out}}) {
    const bool usable = view->device == a.device && view->dtype == DType::kF32 && view->rank == a.rank &&
                        (view->rank == 2 || view->rank == 3) && (view->data != nullptr || view->numel() == 0);
    if (usable) continue;
    Reject(site, std::string(name) + " is " + Describe(*view) + ", expected F32, all 2-D or all 3-D, on " +
                     DeviceName(a.device));
  }
  const MatmulShape left(a), right(b), result(out);
  if (left.cols != right.cols || left.batch != right.batch || result.batch != left.batch || result.rows != left.rows ||
      result.cols != right.rows) {
    Reject(site, "a " + Describe(a) + ", b " + Describe(b) + " and out " + Describe(out) + " do not fit a @ b^T");
  }
  RequireDisjoint(site, out, a);
  RequireDisjoint(site, out, b);
  if (op.config.granularity == ScGranularity::kPerHead && a.rank != 3) {
    Reject(site, "SC parameter granularity = per_head: allowed with 3-D operands");
  }
  if (op.config.chunk_d != 0 && a.rank != 2) {
    Reject(site, "SC parameter chunk_d = " + std::to_string(op.config.chunk_d) + ": allowed is 0 with 3-D operands");
  }
  CheckAccumulator(op, left.cols, site.op);
}

void CheckScMixedMatmul(const TensorView& a, const TensorView& b, const ScOperator& op, const ScExtras& extras,
                        std::span<const int> lengths, const TensorView& out) {
  const OpSite site{-1, "sc_mixed_matmul"};
  RequireView(site, "a", a, a.device, DType::kF32, {kAnySize, kAnySize});
  const int64_t tokens = a.dim(0);
  const int64_t in_features = a.dim(1);
  RequireView(site, "b", b, a.device, DType::kF32, {kAnySize, in_features});
  RequireView(site, "out", out, a.device, DType::kF32, {tokens, b.dim(0)});
  RequireDisjoint(site, out, a);
  RequireDisjoint(site, out, b);
  if (a.numel() == 0 || b.numel() == 0) Reject(site, "empty operands");
  const int64_t rest = in_features - static_cast<int64_t>(extras.protected_channels.size());
  if (lengths.empty() || rest <= 0) return;
  const int64_t chunk = op.config.chunk_d > 0 ? std::min(op.config.chunk_d, rest) : rest;
  const int64_t chunks = (rest + chunk - 1) / chunk;
  const auto count = static_cast<int64_t>(lengths.size());
  if (count == tokens || count == tokens * chunks) return;
  Reject(site, std::to_string(count) + " lengths for " + std::to_string(tokens) + " rows, expected " +
                   std::to_string(tokens) + (chunks > 1 ? " or " + std::to_string(tokens * chunks) : ""));
}

}  // namespace stoch
