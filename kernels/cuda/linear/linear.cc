// SPDX-License-Identifier: Apache-2.0
// The linear op (LinearCall): runs each weight by its precision. Weights of one precision and operator share f(x) and,
// for SC, its quantized codes.
#include "kernels/cuda/sc/linear.h"

#include <vector>

#include "kernels/base/check.h"
#include "kernels/call_check.h"
#include "kernels/cuda/baseline/linear.h"
#include "kernels/cuda/linear/exact.h"
#include "kernels/cuda/linear/fixed.h"
#include "kernels/cuda/mixed/linear.h"
#include "kernels/cuda/mixed/prompt.h"
#include "kernels/cuda/mixed/step.h"
#include "kernels/cuda/plain/product.h"
#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/prologue/functions.h"
#include "kernels/cuda/runtime/ops.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/plan/linear/float.h"
#include "kernels/plan/linear/mixed.h"

namespace stoch::cuda {
namespace {

const CudaLinear& WeightAt(const LinearCall& call, size_t i) {
  return static_cast<const CudaLinear&>(*call.weights[i]);
}

LinearOutput OutputAt(const LinearCall& call, size_t i) {
  return {call.outs[i].ptr<float>(), call.outs[i].step(0), call.add_to_out};
}

// Runs the SC weights of a call that have no extras. Weights that use one operator share launches and the quantized
// f(x).
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
    // If there are several launches, only one of them could poll a shared row, so store the row to memory first.
    if (tasks.size() < call.weights.size() || tasks.size() > kMaxScTasks) ctx.row_channel().Settle();
    LaunchScLinear(ctx, *op, source, call.x.dim(0), call.x.dim(1), reporter, tasks.data(),
                   static_cast<int>(tasks.size()));
  }
}

LinearPass PassOf(const LinearCall& call, const RowSource& source) {
  return {.prologue = call.prologue, .aligned = IsAligned(source), .only_largest = call.only_largest};
}

// A weight that needs the mixed kernels (stream lengths per row, protected channels, ...), and its planned route.
struct MixedChoice {
  MixedTask task;
  LinearRoute route = LinearRoute::kMixedGeneric;
  // The weight has been launched.
  bool done = false;
};

std::vector<MixedChoice> ChoicesOf(DeviceContext& ctx, const LinearCall& call, const LinearPass& pass) {
  std::vector<MixedChoice> choices;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const CudaLinear& weight = WeightAt(call, i);
    if (weight.mixed() == nullptr) continue;
    MixedChoice& choice = choices.emplace_back();
    choice.task = MakeMixedTask(ctx, *weight.mixed(), weight.spec(), OutputAt(call, i));
    const int64_t out_features = weight.rows();
    const LinearShape shape{call.x.dim(0), call.x.dim(1), {&out_features, 1}};
    choice.route = PlanMixedLinear(ctx.traits, choice.task.traits, shape, pass).route;
  }
  return choices;
}

// Takes the first of `left` and the others that can share its launches, up to kMaxScTasks: their routes are of one kind
// (for steps or for prompts) and their activations are quantized alike. Marks them as done.
std::vector<MixedTask> TakeAlike(std::span<MixedChoice> left) {
  const MixedChoice& first = left.front();
  std::vector<MixedTask> tasks;
  for (MixedChoice& choice : left) {
    const bool is_alike = IsMixedStep(choice.route) == IsMixedStep(first.route) &&
                          IsMixedPrompt(choice.route) == IsMixedPrompt(first.route);
    if (choice.done || !is_alike || !SharesRows(first.task, choice.task) || tasks.size() == kMaxScTasks) continue;
    tasks.push_back(choice.task);
    choice.done = true;
  }
  return tasks;
}

// Runs the weights that need the mixed kernels. Those with a route for steps (few rows) or prompts are launched
// together; the others run one by one from f(x) as floats.
void RunMixed(DeviceContext& ctx, const LinearCall& call, const RowSource& source, const SiteReporter& reporter) {
  LinearPass pass = PassOf(call, source);
  pass.observed = ctx.observer != nullptr;
  pass.recorded = ctx.IsRecording();
  std::vector<MixedChoice> choices = ChoicesOf(ctx, call, pass);
  const int64_t rows = call.x.dim(0);
  const int64_t cols = call.x.dim(1);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].done || !(IsMixedStep(choices[i].route) || IsMixedPrompt(choices[i].route))) continue;
    const LinearRoute route = choices[i].route;
    const std::vector<MixedTask> tasks = TakeAlike(std::span(choices).subspan(i));
    if (IsMixedStep(route)) {
      LaunchMixedStep(ctx, call.site, source, rows, tasks, pass, reporter);
    } else {
      LaunchMixedPrompt(ctx, call.site, source, rows, tasks, reporter);
    }
  }
  Scratch scratch(ctx.workspace);
  MixedRows input{nullptr, cols, rows, cols};
  for (const MixedChoice& choice : choices) {
    if (choice.done) continue;
    if (input.x == nullptr) {
      auto* const x = scratch.Take<float>(rows * cols);
      LaunchPrologue(ctx, source, rows, cols, x, cols, reporter);
      input.x = x;
      input.fault_rows = UploadFaultRows(ctx, scratch, call.fault_rows);
    }
    LaunchMixedRows(ctx, call.site, input, choice.task, choice.route, reporter);
  }
}

void RunExact(DeviceContext& ctx, const LinearCall& call, const RowSource& source, const SiteReporter& reporter) {
  const LinearPass pass = PassOf(call, source);
  Scratch scratch(ctx.workspace);
  const float* x = nullptr;
  int64_t stride = 0;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    if (WeightAt(call, i).spec().precision != Precision::kFp32) continue;
    if (WeightAt(call, i).is_fixed_point()) {
      const auto& view = WeightAt(call, i).view<FixedWeightView>();
      const LinearPlan plan = PlanFixedLinear(ctx.traits, {call.x.dim(0), view.cols, {&view.rows, 1}}, pass);
      LaunchFixedLinear(ctx, plan, source, call.x.dim(0), view, OutputAt(call, i), reporter);
      continue;
    }
    const auto& view = WeightAt(call, i).view<ExactWeightView>();
    if (x == nullptr || stride < view.padded_cols) {
      stride = view.padded_cols;
      float* padded = scratch.Take<float>(call.x.dim(0) * stride);
      LaunchPrologue(ctx, source, call.x.dim(0), call.x.dim(1), padded, stride, reporter);
      x = padded;
    }
    const int value_bytes = static_cast<int>(DTypeSize(view.dtype));
    const LinearPlan plan = PlanExactLinear(ctx.traits, value_bytes, {call.x.dim(0), view.cols, {&view.rows, 1}});
    LaunchExactLinear(ctx, plan, x, stride, call.x.dim(0), view, OutputAt(call, i), reporter);
  }
}

void RunHalf(DeviceContext& ctx, const LinearCall& call, const RowSource& source, const SiteReporter& reporter) {
  std::vector<HalfTask> tasks;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    if (WeightAt(call, i).spec().precision != Precision::kFp16) continue;
    tasks.push_back({WeightAt(call, i).view<HalfWeightView>(), OutputAt(call, i)});
  }
  LaunchHalfLinear(ctx, source, call.x.dim(0), call.x.dim(1), reporter, tasks);
}

}  // namespace

void LaunchLinear(DeviceContext& ctx, const LinearCall& call) {
  CheckLinear(call);
  if (call.x.dim(0) == 0) return;
  if (call.table != nullptr) {
    Scratch scratch(ctx.workspace);
    return LaunchLinear(ctx, AfterFunction(ctx, scratch, call));
  }
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
  if (!has_sc) ctx.row_channel().Settle();
  if (has_sc) RunSc(ctx, call, source, reporter);
  if (has_mixed) RunMixed(ctx, call, source, reporter);
  if (has_exact) RunExact(ctx, call, source, reporter);
  if (has_half) RunHalf(ctx, call, source, reporter);
  STOCH_CHECK(!ctx.shared_slot.offered);  // an op has polled the shared row, or Settle has stored it to memory
}

}  // namespace stoch::cuda
