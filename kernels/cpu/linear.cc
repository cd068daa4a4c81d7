#include "kernels/cpu/linear.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "kernels/cpu/exact_product.h"
#include "kernels/cpu/linear_weight.h"
#include "kernels/cpu/rms_norm.h"
#include "kernels/cpu/sc_product.h"
#include "kernels/cpu/views.h"
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

void CheckCall(const LinearCall& call) {
  const std::string op = std::string(call.site.op);
  if (call.weights.empty() || call.weights.size() != call.outs.size()) {
    Reject(op, "got " + std::to_string(call.weights.size()) + " weights and " + std::to_string(call.outs.size()) +
                   " outputs, expected as many and at least one");
  }
  const Device device = call.weights.front()->device();
  const int64_t cols = call.weights.front()->cols();
  RequireView(op, "x", call.x, device, DType::kF32, {kAnySize, cols});
  const int64_t rows = call.x.dim(0);
  if (call.prologue == Prologue::kRmsNorm)
    RequireView(op, "norm_weight", call.norm_weight, device, DType::kF32, {cols});
  if (call.prologue == Prologue::kSiluMul) RequireView(op, "x2", call.x2, device, DType::kF32, {rows, cols});
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const LinearWeight& weight = *call.weights[i];
    if (weight.device() != device || weight.cols() != cols) {
      Reject(op, "weight " + std::to_string(i) + " has " + std::to_string(weight.cols()) + " columns on " +
                     DeviceName(weight.device()) + ", expected " + std::to_string(cols) + " on " + DeviceName(device));
    }
    RequireView(op, "out", call.outs[i], device, DType::kF32, {rows, weight.rows()});
    RequireDisjoint(op, call.outs[i], call.x);
    if (call.prologue == Prologue::kSiluMul) RequireDisjoint(op, call.outs[i], call.x2);
    for (size_t j = 0; j < i; ++j) RequireDisjoint(op, call.outs[i], call.outs[j]);
  }
}

Rows ApplyPrologue(Context& context, const LinearCall& call) {
  Rows f{call.x.ptr<const float>(), call.x.step(0), call.x.dim(0), call.x.dim(1)};
  if (call.prologue == Prologue::kNone) return f;
  const Rows x = f;
  context.prologue.resize(static_cast<size_t>(x.rows * x.cols));
  f.data = context.prologue.data();
  f.stride = x.cols;
  context.pool.ParallelFor(x.rows, [&](int64_t i, int) {
    float* out = context.prologue.data() + i * x.cols;
    if (call.prologue == Prologue::kRmsNorm) {
      RmsNorm(context.simd, x.row(i), call.norm_weight.ptr<const float>(), call.norm_eps, x.cols, out);
    } else {
      context.simd.silu_mul(x.row(i), call.x2.ptr<const float>() + i * call.x2.step(0), x.cols, out);
    }
  });
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
void RunSc(Context& context, const LinearCall& call, const Rows& f, const ScLookup& lookup) {
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
  ScProduct(context.pool, context.simd, lookup, rows, 0, f.rows, targets);
}

void RunExact(Context& context, const LinearCall& call, const Rows& f) {
  std::vector<ExactTarget> targets;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const CpuLinear& weight = WeightAt(call, i);
    if (weight.spec().precision != Precision::kFp32) continue;
    float* out = call.outs[i].ptr<float>();
    for (const CpuLinear::ExactPart& part : weight.parts) {
      targets.push_back({part.rows, part.num_rows, out, call.outs[i].step(0), call.add_to_out});
      out += part.num_rows;
    }
  }
  if (targets.empty()) return;
  if (!AllFinite(context, f.data, f.stride, f.rows, f.cols)) {
    context.finite.Report(call.weights.front()->device(), call.site, "the input");
  }
  ExactProduct(context.pool, context.simd, f.data, f.stride, f.rows, f.cols, targets);
}

}  // namespace

void Linear(Context& context, const LinearCall& call) {
  CheckCall(call);
  if (call.x.dim(0) == 0) return;
  const Rows f = ApplyPrologue(context, call);
  std::vector<const ScLookup*> done;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const ScLookup* lookup = WeightAt(call, i).lookup.get();
    if (lookup == nullptr || std::find(done.begin(), done.end(), lookup) != done.end()) continue;
    done.push_back(lookup);
    RunSc(context, call, f, *lookup);
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
