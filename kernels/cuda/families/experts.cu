// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <span>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/dispatch.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/baseline/experts.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/families/experts.h"
#include "kernels/cuda/mixed/experts.h"
#include "kernels/cuda/mixed/linear.h"
#include "kernels/cuda/plain/product.h"
#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/prologue/functions.h"
#include "kernels/cuda/runtime/for_each.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/ops.h"
#include "kernels/cuda/sc/experts/lookup.h"
#include "kernels/cuda/sc/hopper/grouped.h"
#include "kernels/cuda/weights/mixed.h"
#include "kernels/family_check.h"
#include "kernels/plan/linear/mixed_traits.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;
constexpr int64_t kMaxGridY = 32768;  // rows of one launch: gridDim.y is limited to 65535

// The slots of a launch and where their outputs go. A slot is one (row, choice) pair of the router: slot r * top_k + k
// is the k-th chosen expert of row r.
struct SlotArgs {
  const int32_t* chosen = nullptr;  // [slots]: expert of each slot, written by the router
  int64_t first_slot = 0;           // first slot of this launch
  int per_row = 1;                  // slots that share a row of activations: top_k, or 1 if each slot has its own row
  // Output [slots][out_stride] in device memory; out_stride in floats.
  float* out = nullptr;
  int64_t out_stride = 0;
};

// ---- exact fp32 experts ----

// y = x w^T in fp32 for the slots that chose an expert whose weight has type T. blockIdx.y is the slot, counted from
// args.first_slot; kDotLanes threads compute one output feature. views: [experts], the weight of each expert; type: T.
// Bits: those of the CPU backend.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ExactExpertKernel(const float* x, int64_t x_stride, const ExactWeightView* views, DType type, const SlotArgs args,
                      const SiteReporter reporter) {
  constexpr int kVector = 16 / sizeof(T);
  const int64_t slot = args.first_slot + blockIdx.y;
  const ExactWeightView w = views[args.chosen[slot]];
  if (w.dtype != type) return;
  const int lane = static_cast<int>(threadIdx.x) % kDotLanes;
  const int64_t m = static_cast<int64_t>(blockIdx.x) * (kThreads / kDotLanes) + threadIdx.x / kDotLanes;
  const bool is_there = m < w.rows;  // threads past the last feature still take part in the shuffles below
  const float* row = x + slot / args.per_row * x_stride;
  const T* weights = static_cast<const T*>(w.data) + (is_there ? m : 0) * w.padded_cols + lane * kVector;
  float sum = 0.0f;
  for (int64_t d = 0; d < w.padded_cols; d += kVector * kDotLanes) {
    float values[kVector];
    Expand(LoadStreaming(weights + d), values, T());
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum = Fma(row[d + v * kDotLanes + lane], values[v], sum);
  }
#pragma unroll
  for (int s = kDotLanes / 2; s > 0; s /= 2) sum = sum + __shfl_down_sync(kAllLanes, sum, s, kDotLanes);
  if (lane != 0 || !is_there) return;
  const float y = PlusZero(sum);
  if (!IsFinite(y)) reporter.Report();
  args.out[slot * args.out_stride + m] = y;
}

// ---- combine: weighted sum over a row's experts ----

// out[row] += sum over k of weights[row][k] * x[row * top_k + k], one thread per element of out (LaunchForEach). Bits:
// the sum runs over k in ascending order. Strides are in floats.
struct Combiner {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* weights = nullptr;
  int top_k = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t cols = 0;
  // Reports a NaN or an infinity with the number of its op. LaunchForEach also calls reporter.Begin() on the device,
  // which stores that this op has begun: the op's first kernel has to, and this is its only one.
  SiteReporter reporter;

  __device__ void operator()(int64_t i) const {
    const int64_t row = i / cols;
    const int64_t col = i % cols;
    const float* of_row = weights + row * top_k;
    const float* from = x + row * top_k * x_stride + col;
    float sum = of_row[0] * from[0];
    for (int k = 1; k < top_k; ++k) sum = sum + of_row[k] * from[k * x_stride];
    float* to = out + row * out_stride + col;
    *to = *to + sum;
  }
};

// The prologue f and the activations x of a call, which all its weights share.
RowSource SourceOf(const ExpertLinearCall& call) {
  LinearCall linear;
  linear.prologue = call.prologue;
  linear.x = call.x;
  linear.x2 = call.x2;
  linear.norm_weight = call.norm_weight;
  linear.norm_eps = call.norm_eps;
  return MakeRowSource(linear);
}

const CudaExperts& ExpertsAt(const ExpertLinearCall& call, size_t i) {
  return static_cast<const CudaExperts&>(*call.weights[i]);
}

// Matrices of a call that run together: of one kind, operator and shape, planned alike.
struct ExpertRun {
  DeviceContext& ctx;
  const ExpertLinearCall& call;
  const RowSource source;
  const SiteReporter reporter;
  std::vector<size_t> places;  // in call.weights, 1..kMaxScTasks
  ExpertShape shape;
  ExpertPlan plan;

  const CudaExperts& experts() const { return ExpertsAt(call, places.front()); }
  const ScOperator& op() const { return *experts().first().spec().sc; }
  const int32_t* chosen() const { return call.chosen.ptr<const int32_t>(); }
  SlotArgs slots(size_t i) const {
    return {chosen(), 0, static_cast<int>(shape.row_slots), call.outs[i].ptr<float>(), call.outs[i].step(0)};
  }
  std::vector<ScExpertTask> tasks() const {
    std::vector<ScExpertTask> tasks;
    for (const size_t i : places) {
      tasks.push_back({static_cast<const ScWeightView*>(ExpertsAt(call, i).views()),
                       ExpertsAt(call, i).first().view<ScWeightView>(), slots(i).out, slots(i).out_stride});
    }
    return tasks;
  }
};

// Runs kExpertLookup. Returns true if the launch also did call.combine.
bool RunLookup(const ExpertRun& run) {
  const std::vector<ScExpertTask> tasks = run.tasks();
  const int64_t top_k = run.call.chosen.dim(1);
  ExpertCombine combine;
  if (run.call.combine != nullptr && CanCombine(run.plan, run.shape, top_k)) {
    combine = {run.call.combine->weights.ptr<const float>(), static_cast<int>(top_k),
               run.call.combine->out.ptr<float>(), run.call.combine->out.step(0)};
  }
  LaunchScExpertLookup(run.ctx, run.plan, run.shape, run.ctx.tables.Get(run.op()), run.source, run.chosen(),
                       run.reporter, tasks.data(), static_cast<int>(tasks.size()), combine);
  return combine.top_k > 0;
}

// Runs kExpertGroups.
void RunGroups(const ExpertRun& run) {
  DeviceContext& ctx = run.ctx;
  const std::vector<ScExpertTask> tasks = run.tasks();
  Scratch scratch(ctx.workspace);
  const ScActivationView a =
      LaunchQuantize(run.ctx, scratch, run.source, run.shape.rows, run.shape.in_features, run.op(), run.reporter);
  const ExpertGroups groups = LaunchGroupSlots(ctx, scratch, run.chosen(), run.shape.slots(), run.shape.experts,
                                               run.plan.max_tiles, kPrefillTileTokens);
  LaunchScExpertGroups(ctx, run.plan, run.shape, ctx.tables.Traits(run.op()), ctx.tables.Get(run.op()), a, groups,
                       tasks.data(), static_cast<int>(tasks.size()));
}

// Runs kExpertGeneric of weights of one operator, from codes.
void RunPlain(const ExpertRun& run) {
  Scratch scratch(run.ctx.workspace);
  const ScActivationView a =
      LaunchQuantize(run.ctx, scratch, run.source, run.shape.rows, run.shape.in_features, run.op(), run.reporter);
  for (const ScExpertTask& task : run.tasks()) {
    PlainProduct product = MakePlainProduct(run.ctx, run.op());
    product.a = a;
    product.w = task.first;
    product.out = {task.out, task.out_stride};
    product.experts = task.views;
    product.chosen = run.chosen();
    product.row_slots = run.shape.row_slots;
    LaunchPlainProduct(run.ctx, product);
  }
}

// Runs kExpertGeneric of mixed weights, and kExpertSorted, from f(x) as floats.
void RunRows(const ExpertRun& run) {
  DeviceContext& ctx = run.ctx;
  const auto& [rows, row_slots, count, cols, out_features, matrices] = run.shape;
  Scratch scratch(ctx.workspace);
  auto* const x = scratch.Take<float>(rows * cols);
  LaunchPrologue(ctx, run.source, rows, cols, x, cols, run.reporter);
  MixedRows input{x, cols, rows, cols};
  input.fault_rows = UploadFaultRows(ctx, scratch, run.call.fault_rows);
  input.row_slots = rows / run.call.chosen.dim(0);
  for (const size_t i : run.places) {
    const CudaExperts& experts = ExpertsAt(run.call, i);
    const LinearOutput out{run.slots(i).out, run.slots(i).out_stride, false};
    if (run.plan.route == LinearRoute::kExpertGeneric) {
      const MixedExperts mixed{experts.first().mixed(), experts.first().spec().extras.get(),
                               static_cast<const ScWeightView*>(experts.views()), run.chosen(), row_slots};
      LaunchMixedExperts(ctx, input, mixed, run.reporter, out);
      continue;
    }
    std::vector<const MixedWeight*> weights;
    std::vector<const ScExtras*> extras;
    for (size_t e = 0; e < static_cast<size_t>(count); ++e) {
      weights.push_back(&experts.parts(e));
      extras.push_back(experts.at(e).spec().extras.get());
    }
    const SortedExperts sorted{
        weights, extras, run.chosen(), run.call.chosen.numel(), row_slots, run.call.chosen.dim(1), run.call.fault_rows};
    LaunchSortedExperts(ctx, run.call.site, input, sorted, run.reporter, out);
  }
}

void RunHalf(const ExpertRun& run) {
  HalfExpertCall half;
  half.source = run.source;
  half.chosen = run.chosen();
  half.slots = run.shape.slots();
  half.row_slots = static_cast<int>(run.shape.row_slots);
  half.rows = run.shape.out_features;
  half.cols = run.shape.in_features;
  for (const size_t i : run.places) {
    half.tasks[half.count++] = {static_cast<const HalfWeightView*>(ExpertsAt(run.call, i).views()), run.slots(i).out,
                                run.slots(i).out_stride};
  }
  LaunchHalfExperts(run.ctx, half, run.reporter);
}

// Runs kExactExpert: one launch for each matrix and type of numbers.
void RunExact(const ExpertRun& run) {
  for (const size_t i : run.places) {
    const CudaExperts& experts = ExpertsAt(run.call, i);
    int64_t stride = 0;  // columns of x, as many as the type has that pads most
    std::vector<DType> types;
    for (int64_t e = 0; e < experts.count(); ++e) {
      const auto& view = experts.at(static_cast<size_t>(e)).view<ExactWeightView>();
      stride = std::max(stride, view.padded_cols);
      if (std::find(types.begin(), types.end(), view.dtype) == types.end()) types.push_back(view.dtype);
    }
    Scratch scratch(run.ctx.workspace);
    float* x = scratch.Take<float>(run.shape.rows * stride);
    LaunchPrologue(run.ctx, run.source, run.shape.rows, experts.cols(), x, stride, run.reporter);
    SlotArgs args = run.slots(i);
    const auto* views = static_cast<const ExactWeightView*>(experts.views());
    constexpr int64_t kBlockOutputs = kThreads / kDotLanes;
    const auto blocks = static_cast<unsigned>((experts.rows() + kBlockOutputs - 1) / kBlockOutputs);
    for (const DType type : types) {
      DispatchFloat(type, [&](auto tag) {
        using T = typename decltype(tag)::Type;
        for (args.first_slot = 0; args.first_slot < run.shape.slots(); args.first_slot += kMaxGridY) {
          const auto count = static_cast<unsigned>(std::min(kMaxGridY, run.shape.slots() - args.first_slot));
          ExactExpertKernel<T>
              <<<dim3(blocks, count), kThreads, 0, run.ctx.stream>>>(x, stride, views, type, args, run.reporter);
          STOCH_CUDA_LAUNCH("ExactExpertKernel");
        }
      });
    }
  }
}

// Removes from `left` (indices in call.weights) its first matrix and the matrices that can run with it (ExpertRun).
// Returns the removed indices.
std::vector<size_t> TakeAlike(const ExpertLinearCall& call, std::vector<size_t>& left) {
  const CudaExperts& first = ExpertsAt(call, left.front());
  std::vector<size_t> alike, others;
  for (const size_t i : left) {
    const CudaExperts& experts = ExpertsAt(call, i);
    const bool is_alike = experts.operand().kind == first.operand().kind &&
                          experts.operand().mixed.is_alone == first.operand().mixed.is_alone &&
                          experts.first().spec().sc == first.first().spec().sc && experts.rows() == first.rows();
    (is_alike && alike.size() < size_t{kMaxScTasks} ? alike : others).push_back(i);
  }
  left = std::move(others);
  return alike;
}

template <typename View>
Buffer UploadViews(DeviceContext& ctx, const std::vector<std::unique_ptr<LinearWeight>>& experts) {
  std::vector<View> views;
  for (const auto& expert : experts) views.push_back(static_cast<const CudaLinear&>(*expert).view<View>());
  return DeviceCopy(ctx.device, views);
}

// The weights of experts of one operator as weights in parts, each with one part whose memory is the expert's.
std::vector<std::unique_ptr<MixedWeight>> PartsOf(DeviceContext& ctx,
                                                  const std::vector<std::unique_ptr<LinearWeight>>& experts) {
  const ScOperatorPtr& op = experts.front()->spec().sc;
  const auto lengths = std::make_shared<LengthTables>(ctx.device, ctx.tables, op, nullptr);
  std::vector<std::unique_ptr<MixedWeight>> parts;
  for (const auto& expert : experts) {
    MixedWeight& one = *parts.emplace_back(std::make_unique<MixedWeight>());
    one.cols = expert->cols();
    one.rest.view = static_cast<const CudaLinear&>(*expert).view<ScWeightView>();
    one.rest.operators = {op};
    one.rest.lengths = lengths;
  }
  return parts;
}

}  // namespace

int64_t CudaExperts::bytes() const {
  auto bytes = static_cast<int64_t>(views_.bytes());
  for (const auto& expert : experts_) bytes += expert->bytes();
  return bytes;
}

CudaExperts::CudaExperts(DeviceContext& ctx, std::vector<std::unique_ptr<LinearWeight>> experts)
    : experts_(std::move(experts)) {
  const bool is_mixed = first().mixed() != nullptr;
  operand_ = is_mixed ? LinearOperand{LinearKind::kMixed} : MakeLinearOperand(first().spec(), cols());
  operand_.mixed.is_alone = is_mixed;
  switch (operand_.kind) {
    case LinearKind::kSc:
      views_ = UploadViews<ScWeightView>(ctx, experts_);
      if (operand_.sc.scope_rows != 1) parts_ = PartsOf(ctx, experts_);
      break;
    case LinearKind::kMixed:
      views_ = UploadViews<ScWeightView>(ctx, experts_);
      for (const auto& expert : experts_) {
        MixedTraits own;
        SetRuleTraits(expert->spec(), &own);
        operand_.mixed.is_alone = operand_.mixed.is_alone && own.is_alone;
      }
      break;
    case LinearKind::kExact:
    case LinearKind::kFixed: views_ = UploadViews<ExactWeightView>(ctx, experts_); break;
    case LinearKind::kHalf: views_ = UploadViews<HalfWeightView>(ctx, experts_); break;
  }
}

CudaExperts::~CudaExperts() = default;

const MixedWeight& CudaExperts::parts(size_t expert) const {
  return parts_.empty() ? *at(expert).mixed() : *parts_[expert];
}

void LaunchExpertLinear(DeviceContext& ctx, const ExpertLinearCall& call) {
  CheckExpertLinear(call);
  if (call.chosen.numel() == 0) return;
  if (call.table != nullptr) {
    Scratch scratch(ctx.workspace);
    return LaunchExpertLinear(ctx, AfterFunction(ctx, scratch, call));
  }
  std::vector<size_t> left(call.weights.size());
  std::iota(left.begin(), left.end(), size_t{0});
  bool combined = false;
  while (!left.empty()) {
    ExpertRun run{ctx, call, SourceOf(call), ctx.Reporter(call.site), TakeAlike(call, left), {}, {}};
    const CudaExperts& experts = run.experts();
    // Slots share a row of x if it has a row per token.
    const int64_t row_slots = call.x.dim(0) == call.chosen.dim(0) ? call.chosen.dim(1) : 1;
    run.shape = {call.x.dim(0),  row_slots,      experts.count(),
                 experts.cols(), experts.rows(), static_cast<int64_t>(run.places.size())};
    run.plan = PlanExperts(ctx.traits, experts.operand(), run.shape, {.observed = ctx.observer != nullptr});
    switch (run.plan.route) {
      case LinearRoute::kExpertLookup: combined = RunLookup(run); break;
      case LinearRoute::kExpertGroups: RunGroups(run); break;
      case LinearRoute::kExpertGeneric: experts.operand().kind == LinearKind::kSc ? RunPlain(run) : RunRows(run); break;
      case LinearRoute::kExpertSorted: RunRows(run); break;
      case LinearRoute::kExactExpert: RunExact(run); break;
      case LinearRoute::kHalfExpert: RunHalf(run); break;
      default: STOCH_CHECK(false);  // PlanExperts returns no other route
    }
  }
  if (call.combine != nullptr && !combined) LaunchCombineExperts(ctx, *call.combine);
}

void LaunchCombineExperts(DeviceContext& ctx, const CombineExpertsCall& call) {
  CheckCombineExperts(call);
  Combiner args;
  args.x = call.x.ptr<const float>();
  args.x_stride = call.x.step(0);
  args.weights = call.weights.ptr<const float>();
  args.top_k = static_cast<int>(call.weights.dim(1));
  args.out = call.out.ptr<float>();
  args.out_stride = call.out.step(0);
  args.cols = call.out.dim(1);
  args.reporter = ctx.Reporter(call.site);
  LaunchForEach(ctx, call.out.numel(), args);
}

}  // namespace stoch::cuda
