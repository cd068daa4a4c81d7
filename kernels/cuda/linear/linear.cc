// SPDX-License-Identifier: Apache-2.0
// Weights of one precision and operator share the prologue and, for SC, its codes.
#include "kernels/cuda/sc/linear.h"

#include <vector>

#include "kernels/base/check.h"
#include "kernels/call_check.h"
#include "kernels/cuda/linear/exact.h"
#include "kernels/cuda/linear/fixed.h"
#include "kernels/cuda/linear/fp16.h"
#include "kernels/cuda/mixed/batch.h"
#include "kernels/cuda/mixed/linear.h"
#include "kernels/cuda/mixed/prompt.h"
#include "kernels/cuda/mixed/step.h"
#include "kernels/cuda/mixed/table.h"
#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/runtime/ops.h"
#include "kernels/cuda/weights/weights.h"

namespace stoch::cuda {
namespace {

const CudaLinear& WeightAt(const LinearCall& call, size_t i) {
  return static_cast<const CudaLinear&>(*call.weights[i]);
}

LinearOutput OutputAt(const LinearCall& call, size_t i) {
  return {call.outs[i].ptr<float>(), call.outs[i].step(0), call.add_to_out};
}

// The weights of `call` that use one operator share the quantized f(x).
void RunSc(DeviceContext& ctx, const LinearCall& call, const RowSource& source, const SiteReporter& reporter) {
  std::vector<const ScOperator*> done;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const ScOperator* op = WeightAt(call, i).spec().sc.get();
    bool seen = op == nullptr || WeightAt(call, i).mixed() != nullptr;
    for (const ScOperator* other : done) seen = seen || other == op;
    if (seen) continue;
    done.push_back(op);
    std::vector<ScLinearTask> tasks;
    for (size_t j = i; j < call.weights.size(); ++j) {
      const CudaLinear& weight = WeightAt(call, j);
      if (weight.spec().sc.get() == op && weight.mixed() == nullptr)
        tasks.push_back({weight.view<ScWeightView>(), OutputAt(call, j)});
    }
    // More than one launch: only one could poll.
    if (tasks.size() < call.weights.size() || tasks.size() > kMaxScTasks) ctx.posted_rows().Settle();
    LaunchScLinear(ctx, *op, source, call.x.dim(0), call.x.dim(1), reporter, tasks.data(),
                   static_cast<int>(tasks.size()));
  }
}

// Which of the kernels that do not wait for the host take a weight of mixed lengths.
using MixedLaunch = decltype(&LaunchMixedDecode);
MixedLaunch MixedLaunchOf(DeviceContext& ctx, const MixedTask& task, int64_t rows) {
  const bool many = rows <= kMixedLookupRows && DecodesMixed(ctx, task);
  if (many &&
      ((MixedBatchPass(rows) > 0 && BatchesMixed(ctx, task)) || LooksUpMixed(ctx, task, MixedTablePass(rows)))) {
    return &LaunchMixedDecode;
  }
  if (rows >= kMixedPromptRows && PromptsMixed(ctx, task)) return &LaunchMixedPrompt;
  if (rows <= kMixedDecodeRows && DecodesMixed(ctx, task)) return &LaunchMixedDecode;
  return nullptr;
}

// The weights of mixed lengths that these take; those that share f(x) together. Marks them.
void RunFastMixed(DeviceContext& ctx, const LinearCall& call, const RowSource& source, const SiteReporter& reporter,
                  std::vector<bool>& done) {
  const int64_t rows = call.x.dim(0);
  const auto task_of = [&](size_t i) {
    const CudaLinear& weight = WeightAt(call, i);
    return MixedTask{weight.mixed(), &weight.spec(), OutputAt(call, i)};
  };
  for (size_t i = 0; i < call.weights.size(); ++i) {
    if (done[i] || WeightAt(call, i).mixed() == nullptr) continue;
    const MixedLaunch launch = MixedLaunchOf(ctx, task_of(i), rows);
    if (launch == nullptr) continue;
    std::vector<MixedTask> tasks;
    for (size_t j = i; j < call.weights.size() && tasks.size() < kMaxScTasks; ++j) {
      if (done[j] || WeightAt(call, j).mixed() == nullptr) continue;
      const MixedTask task = task_of(j);
      if (MixedLaunchOf(ctx, task, rows) != launch || (!tasks.empty() && !SharesRows(tasks[0], task))) continue;
      tasks.push_back(task);
      done[j] = true;
    }
    launch(ctx, call.site, source, rows, tasks, reporter);
  }
}

// Weights with extras, integers or tables; those that have no fast kernel each on its own, from f(x) as floats.
void RunMixed(DeviceContext& ctx, const LinearCall& call, const RowSource& source, const SiteReporter& reporter) {
  std::vector<bool> done(call.weights.size(), false);
  RunFastMixed(ctx, call, source, reporter, done);
  Scratch scratch(ctx.workspace);
  const int64_t rows = call.x.dim(0);
  const int64_t cols = call.x.dim(1);
  float* x = nullptr;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const CudaLinear& weight = WeightAt(call, i);
    if (weight.mixed() == nullptr || done[i]) continue;
    if (x == nullptr) {
      x = scratch.Take<float>(rows * cols);
      LaunchPrologue(ctx, source, rows, cols, x, cols, reporter);
    }
    LaunchMixedLinear(ctx, call.site, {x, cols, rows, cols}, *weight.mixed(), weight.spec().extras.get(), reporter,
                      OutputAt(call, i));
  }
}

void RunExact(DeviceContext& ctx, const LinearCall& call, const RowSource& source, const SiteReporter& reporter) {
  Scratch scratch(ctx.workspace);
  const float* x = nullptr;
  int64_t stride = 0;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    if (WeightAt(call, i).spec().precision != Precision::kFp32) continue;
    if (WeightAt(call, i).is_fixed_point()) {
      const auto& view = WeightAt(call, i).view<FixedWeightView>();
      LaunchFixedLinear(ctx, source, call.x.dim(0), view, OutputAt(call, i), reporter, call.only_largest);
      continue;
    }
    const auto& view = WeightAt(call, i).view<ExactWeightView>();
    if (x == nullptr || stride < view.padded_cols) {
      stride = view.padded_cols;
      float* padded = scratch.Take<float>(call.x.dim(0) * stride);
      LaunchPrologue(ctx, source, call.x.dim(0), call.x.dim(1), padded, stride, reporter);
      x = padded;
    }
    LaunchExactLinear(ctx, x, stride, call.x.dim(0), view, OutputAt(call, i), reporter);
  }
}

void RunHalf(DeviceContext& ctx, const LinearCall& call, const RowSource& source, const SiteReporter& reporter) {
  std::vector<Fp16Task> tasks;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    if (WeightAt(call, i).spec().precision != Precision::kFp16) continue;
    tasks.push_back({WeightAt(call, i).view<HalfWeightView>(), OutputAt(call, i)});
  }
  LaunchFp16Linear(ctx, source, call.x.dim(0), call.x.dim(1), reporter, tasks.data(), static_cast<int>(tasks.size()));
}

}  // namespace

void LaunchLinear(DeviceContext& ctx, const LinearCall& call) {
  CheckLinear(call);
  if (call.x.dim(0) == 0) return;
  const SiteReporter reporter = ctx.Reporter(call.site);
  const RowSource source = MakeRowSource(call);
  bool has_sc = false;
  bool has_exact = false;
  bool has_half = false;
  bool has_mixed = false;
  for (const LinearWeight* weight : call.weights) {
    has_mixed = has_mixed || static_cast<const CudaLinear*>(weight)->mixed() != nullptr;
    switch (weight->spec().precision) {
      case Precision::kSc: has_sc = true; break;
      case Precision::kFp32: has_exact = true; break;
      case Precision::kFp16: has_half = true; break;
    }
  }
  if (!has_sc) ctx.posted_rows().Settle();
  if (has_sc) RunSc(ctx, call, source, reporter);
  if (has_mixed) RunMixed(ctx, call, source, reporter);
  if (has_exact) RunExact(ctx, call, source, reporter);
  if (has_half) RunHalf(ctx, call, source, reporter);
  STOCH_CHECK(!ctx.posted_rows().has_shared());  // it was polled, or is in memory
}

}  // namespace stoch::cuda
