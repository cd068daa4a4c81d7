// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/linear.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "kernels/call_check.h"
#include "kernels/cpu/exact_product.h"
#include "kernels/cpu/fixed_product.h"
#include "kernels/cpu/linear_weight.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/rms_norm.h"
#include "kernels/cpu/sc_product.h"
#include "kernels/math/elementary.h"

namespace stoch::cpu {
namespace {

struct Rows {  // f(x): rows of floats
  const float* data = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  const float* row(int64_t i) const { return data + i * stride; }
};

const CpuLinear& WeightAt(const LinearCall& call, size_t i) { return static_cast<const CpuLinear&>(*call.weights[i]); }

Rows ApplyPrologue(Context& context, const LinearCall& call) {
  Rows f{call.x.ptr<const float>(), call.x.step(0), call.x.dim(0), call.x.dim(1)};
  if (call.prologue == Prologue::kNone) return f;
  context.prologue.resize(static_cast<size_t>(f.rows * f.cols));
  f.data = context.prologue.data();
  f.stride = f.cols;
  const RowPrologue prologue{call.prologue, call.x, call.x2, call.norm_weight, call.norm_eps, call.table};
  context.pool.ParallelFor(
      f.rows, [&](int64_t i, int) { prologue.Apply(context.simd, i, context.prologue.data() + i * f.cols); });
  return f;
}

bool AllFinite(Context& context, const float* data, int64_t stride, int64_t rows, int64_t cols) {
  std::atomic<bool> finite{true};
  context.pool.ParallelFor(rows, [&](int64_t i, int) {
    if (!IsFinite(BitsToFloat(context.simd.max_abs_bits(data + i * stride, cols)))) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite.load();
}

// The SC weights of `call` that use one operator share the quantized f(x).
void RunSc(Context& context, const LinearCall& call, const Rows& f, const ScLookupPtr& shared) {
  const ScLookup& lookup = *shared;
  std::vector<ScTarget> targets;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const CpuLinear& weight = WeightAt(call, i);
    if (weight.lookup.get() != &lookup) continue;
    targets.push_back({&weight.blocks, call.outs[i].ptr<float>(), call.outs[i].step(0), 1, call.add_to_out});
  }
  const ScOperator& op = *lookup.op;
  const ScChunks chunks(op, f.cols);
  const ScQuantizer quantizer(context.pool, context.simd, op, chunks, ScopesOf(op, ScOperand::kA, 1, f.rows), f.rows,
                              [&](int64_t row, float*) { return f.row(row); });
  ScRows& rows = context.rows;
  rows.Resize(lookup, chunks, f.rows, chunks.size);
  std::atomic<bool> finite{true};
  context.pool.ParallelFor(f.rows, [&](int64_t i, int) {
    if (!quantizer.Quantize(i, f.row(i), rows.row(i))) finite.store(false, std::memory_order_relaxed);
    rows.Derive(lookup, i);
  });
  if (!finite.load()) context.finite.Report(call.weights.front()->device(), call.site, "the input");
  ScProduct(context.pool, context.simd, shared, rows, 0, f.rows, targets);
}

void RunMixed(Context& context, const LinearCall& call, const Rows& f, size_t i, const ExpertRows& expert) {
  const CpuLinear& weight = WeightAt(call, i);
  const TensorView& out = call.outs[i];
  if (!MixedProduct(context, {f.data, f.stride, f.rows, f.cols, call.fault_rows, expert.tokens}, *weight.spec().sc,
                    *weight.spec().extras, weight.mixed, expert.lengths, call.site,
                    {out.ptr<float>(), out.step(0), 1, call.add_to_out})) {
    context.finite.Report(weight.device(), call.site, "the input");
  }
}

void RunExact(Context& context, const LinearCall& call, const Rows& f) {
  std::vector<ExactTarget> targets;
  std::vector<FixedTarget> fixed;
  const CpuLinear::ExactPart* largest = nullptr;  // whose largest product alone is wanted
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const CpuLinear& weight = WeightAt(call, i);
    if (weight.spec().precision != Precision::kFp32) continue;
    float* out = call.outs[i].ptr<float>();
    const int64_t stride = call.outs[i].step(0);
    for (const CpuLinear::ExactPart& part : weight.parts) {
      const WeightSource* decoded = part.decoded.decoder != nullptr ? &part.decoded : nullptr;
      const bool screened = call.only_largest && f.rows == 1 && !call.add_to_out && call.weights.size() == 1;
      if (screened && part.float_screen.bytes != nullptr) {
        largest = &part;
      } else if (part.scales != nullptr) {
        const FixedScreen* screen = screened && part.screen.bytes != nullptr ? &part.screen : nullptr;
        fixed.push_back({part.rows, part.scales, part.num_rows, out, stride, call.add_to_out, screen});
      } else {
        targets.push_back({part.rows, decoded, part.num_rows, out, stride, call.add_to_out});
      }
      out += part.num_rows;
    }
  }
  if (targets.empty() && fixed.empty() && largest == nullptr) return;
  const bool finite = AllFinite(context, f.data, f.stride, f.rows, f.cols);
  if (!finite) context.finite.Report(call.weights.front()->device(), call.site, "the input");
  if (!targets.empty()) ExactProduct(context.pool, context.simd, f.data, f.stride, f.rows, f.cols, targets);
  if (largest != nullptr && finite) {
    LargestFloatProduct(
        context.pool, context.simd, f.data, largest->num_rows, f.cols, largest->float_screen,
        [&](int64_t row, float* scratch) { return largest->Row(context.simd, f.cols, row, scratch); },
        call.outs.front().ptr<float>());
  }
  // NaN is no integer.
  if (!fixed.empty() && finite) FixedProduct(context.pool, context.simd, f.data, f.stride, f.rows, f.cols, fixed);
}

}  // namespace

void SiluMul(const Simd& simd, const NonlinearTable* table, const float* x, const float* x2, int64_t n, float* out) {
  if (table == nullptr) return simd.silu_mul(x, x2, n, out);
  for (int64_t i = 0; i < n; ++i) out[i] = table->At(x[i]) * x2[i];
}

void RowPrologue::Apply(const Simd& simd, int64_t row, float* out) const {
  const float* from = x.ptr<const float>() + row * x.step(0);
  const int64_t cols = x.dim(1);
  switch (prologue) {
    case Prologue::kNone: std::copy(from, from + cols, out); break;
    case Prologue::kRmsNorm: RmsNorm(simd, from, norm_weight.ptr<const float>(), norm_eps, cols, out, table); break;
    case Prologue::kSiluMul: SiluMul(simd, table, from, x2.ptr<const float>() + row * x2.step(0), cols, out); break;
  }
}

void Linear(Context& context, const LinearCall& call) { Linear(context, call, {}); }

void Linear(Context& context, const LinearCall& call, const ExpertRows& expert) {
  CheckLinear(call);
  if (call.x.dim(0) == 0) return;
  const Rows f = ApplyPrologue(context, call);
  const bool is_shown = expert.tokens.empty();  // rows of experts by their call
  if (context.observer != nullptr && is_shown) context.observer->OnLinear(call, f.data, f.rows, f.cols, f.stride);
  std::vector<const ScLookup*> done;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const CpuLinear& weight = WeightAt(call, i);
    if (weight.spec().extras != nullptr) RunMixed(context, call, f, i, expert);
    const ScLookup* lookup = weight.lookup.get();
    if (lookup == nullptr || std::find(done.begin(), done.end(), lookup) != done.end()) continue;
    done.push_back(lookup);
    RunSc(context, call, f, weight.lookup);
  }
  RunExact(context, call, f);
  for (size_t i = 0; i < call.outs.size(); ++i) {
    const TensorView& out = call.outs[i];
    if (!AllFinite(context, out.ptr<const float>(), out.step(0), out.dim(0), out.dim(1))) {
      context.finite.Report(out.device, call.site, "the result");
    }
  }
}

}  // namespace stoch::cpu
