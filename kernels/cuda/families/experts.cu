// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <span>
#include <string>

#include "kernels/base/error.h"
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
#include "kernels/family_check.h"

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

// y = x w^T in fp32 for the experts that the slots chose. blockIdx.y is the slot, counted from args.first_slot;
// kDotLanes threads compute one output feature. views: [experts], the weight of each expert. Bits: those of the CPU
// backend.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ExactExpertKernel(const float* x, int64_t x_stride, const ExactWeightView* views, const SlotArgs args,
                      const SiteReporter reporter) {
  constexpr int kVector = 16 / sizeof(T);
  const int64_t slot = args.first_slot + blockIdx.y;
  const ExactWeightView w = views[args.chosen[slot]];
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
  SiteReporter reporter;  // LaunchForEach calls Begin, as this is the op's only kernel

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

// Calls launch(first, count) for consecutive parts of `total` slots that fit gridDim.y.
template <typename LaunchFn>
void ForGridY(int64_t total, const LaunchFn& launch) {
  for (int64_t first = 0; first < total; first += kMaxGridY) {
    launch(first, static_cast<unsigned>(std::min(kMaxGridY, total - first)));
  }
}

unsigned Blocks(int64_t count, int64_t per_block) { return static_cast<unsigned>((count + per_block - 1) / per_block); }

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

// Number of slots that share a row of x: top_k if x has a row per token, 1 if x has a row per slot.
int RowSlots(const ExpertLinearCall& call) {
  return call.x.dim(0) == call.chosen.dim(0) ? static_cast<int>(call.chosen.dim(1)) : 1;
}

SlotArgs SlotsOf(const ExpertLinearCall& call, size_t i) {
  SlotArgs args;
  args.chosen = call.chosen.ptr<const int32_t>();
  args.per_row = RowSlots(call);
  args.out = call.outs[i].ptr<float>();
  args.out_stride = call.outs[i].step(0);
  return args;
}

// Runs SC experts with the generic kernel, which takes any operator. a: the quantized activations.
void RunScPlain(DeviceContext& ctx, const CudaExperts& experts, const ScOperator& op, const ScActivationView& a,
                const SlotArgs& args) {
  PlainProduct product = MakePlainProduct(ctx, op);
  product.a = a;
  product.w = experts.first().view<ScWeightView>();
  product.out = {args.out, args.out_stride};
  product.experts = static_cast<const ScWeightView*>(experts.views());
  product.chosen = args.chosen;
  product.row_slots = args.per_row;
  LaunchPlainProduct(ctx, product);
}

// Runs SC experts whose matrices share an operator and a shape. places: indices of these matrices in call.weights.
// Returns true if the launch also did call.combine.
bool RunSc(DeviceContext& ctx, const ExpertLinearCall& call, const RowSource& source, std::span<const size_t> places,
           const SiteReporter& reporter) {
  const CudaExperts& experts = ExpertsAt(call, places.front());
  const ScOperator& op = *experts.first().spec().sc;
  const ScTables& tables = ctx.tables.Get(op);
  ExpertShape shape;
  shape.rows = call.x.dim(0);
  shape.row_slots = RowSlots(call);
  shape.experts = experts.count();
  shape.in_features = experts.cols();
  shape.out_features = experts.rows();
  shape.matrices = static_cast<int64_t>(places.size());
  const ExpertPlan plan = PlanExperts(ctx.traits, ctx.tables.Traits(op), shape);
  const int32_t* chosen = call.chosen.ptr<const int32_t>();
  std::vector<ScExpertTask> tasks;
  for (const size_t i : places) {
    tasks.push_back({static_cast<const ScWeightView*>(ExpertsAt(call, i).views()),
                     ExpertsAt(call, i).first().view<ScWeightView>(), call.outs[i].ptr<float>(), call.outs[i].step(0)});
  }
  const int count = static_cast<int>(tasks.size());
  Scratch scratch(ctx.workspace);
  if (plan.route == LinearRoute::kExpertLookup) {
    ExpertCombine combine;
    if (call.combine != nullptr && CanCombine(plan, shape, call.chosen.dim(1))) {
      combine = {call.combine->weights.ptr<const float>(), static_cast<int>(call.chosen.dim(1)),
                 call.combine->out.ptr<float>(), call.combine->out.step(0)};
    }
    LaunchScExpertLookup(ctx, plan, shape, tables, source, chosen, reporter, tasks.data(), count, combine);
    return combine.top_k > 0;
  }
  const ScActivationView a = LaunchQuantize(ctx, scratch, source, shape.rows, shape.in_features, op, reporter);
  if (plan.route == LinearRoute::kExpertGroups) {
    const ExpertGroups groups =
        LaunchGroupSlots(ctx, scratch, chosen, shape.slots(), shape.experts, plan.max_tiles, kPrefillTileTokens);
    LaunchScExpertGroups(ctx, plan, shape, ctx.tables.Traits(op), tables, a, groups, tasks.data(), count);
    return false;
  }
  for (const size_t i : places) RunScPlain(ctx, ExpertsAt(call, i), op, a, SlotsOf(call, i));
  return false;
}

// Runs SC experts with slots grouped by chosen expert on the host: for each expert, one matrix product over the rows of
// all slots that chose it (mixed/experts.h).
void RunGrouped(DeviceContext& ctx, const ExpertLinearCall& call, const MixedRows& input, const CudaExperts& experts,
                const SlotArgs& slots, const SiteReporter& reporter) {
  std::vector<const MixedWeight*> weights;
  std::vector<const ScExtras*> extras;
  for (size_t e = 0; e < static_cast<size_t>(experts.count()); ++e) {
    weights.push_back(experts.at(e).mixed());
    extras.push_back(experts.at(e).spec().extras.get());
  }
  const GroupedExperts grouped{
      weights, extras, slots.chosen, call.chosen.numel(), slots.per_row, call.chosen.dim(1), call.fault_rows};
  LaunchGroupedExperts(ctx, call.site, input, grouped, reporter, {slots.out, slots.out_stride, false});
}

// Runs SC experts that need the mixed kernels: integer arithmetic, product tables, stream lengths per row, or non-ideal
// hardware. These kernels take f(x) as floats.
void RunMixed(DeviceContext& ctx, const ExpertLinearCall& call, const RowSource& source, std::span<const size_t> places,
              const SiteReporter& reporter) {
  Scratch scratch(ctx.workspace);
  const int64_t rows = call.x.dim(0);
  const int64_t cols = call.x.dim(1);
  auto* const x = scratch.Take<float>(rows * cols);
  LaunchPrologue(ctx, source, rows, cols, x, cols, reporter);
  MixedRows input{x, cols, rows, cols};
  input.fault_rows = UploadFaultRows(ctx, scratch, call.fault_rows);
  input.row_slots = rows / call.chosen.dim(0);
  for (const size_t i : places) {
    const CudaExperts& experts = ExpertsAt(call, i);
    const SlotArgs slots = SlotsOf(call, i);
    if (experts.is_grouped() || ctx.observer != nullptr) {
      RunGrouped(ctx, call, input, experts, slots, reporter);
      continue;
    }
    const MixedExperts mixed{experts.first().mixed(), experts.first().spec().extras.get(),
                             static_cast<const ScWeightView*>(experts.views()), slots.chosen, slots.per_row};
    LaunchMixedExperts(ctx, input, mixed, reporter, {slots.out, slots.out_stride, false});
  }
}

void RunHalf(DeviceContext& ctx, const ExpertLinearCall& call, const RowSource& source, std::span<const size_t> places,
             const SiteReporter& reporter) {
  HalfExpertCall half;
  half.source = source;
  half.chosen = call.chosen.ptr<const int32_t>();
  half.slots = call.chosen.numel();
  half.row_slots = RowSlots(call);
  half.rows = ExpertsAt(call, places.front()).rows();
  half.cols = ExpertsAt(call, places.front()).cols();
  for (const size_t i : places) {
    half.tasks[half.count++] = {static_cast<const HalfWeightView*>(ExpertsAt(call, i).views()),
                                call.outs[i].ptr<float>(), call.outs[i].step(0)};
  }
  LaunchHalfExperts(ctx, half, reporter);
}

void RunExact(DeviceContext& ctx, const CudaExperts& experts, const RowSource& source, int64_t x_rows, int64_t slots,
              SlotArgs args, const SiteReporter& reporter) {
  const auto& view = experts.first().view<ExactWeightView>();
  Scratch scratch(ctx.workspace);
  float* x = scratch.Take<float>(x_rows * view.padded_cols);
  LaunchPrologue(ctx, source, x_rows, experts.cols(), x, view.padded_cols, reporter);
  DispatchFloat(view.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    ForGridY(slots, [&](int64_t first, unsigned count) {
      args.first_slot = first;
      ExactExpertKernel<T><<<dim3(Blocks(experts.rows(), kThreads / kDotLanes), count), kThreads, 0, ctx.stream>>>(
          x, view.padded_cols, static_cast<const ExactWeightView*>(experts.views()), args, reporter);
      STOCH_CUDA_LAUNCH("ExactExpertKernel");
    });
  });
}

// Removes from `left` (indices in call.weights) its first matrix and the matrices that one launch can take with it: of
// the same precision, operator and shape, at most kMaxScTasks in all. Returns the removed indices.
std::vector<size_t> TakeAlike(const ExpertLinearCall& call, std::vector<size_t>& left) {
  const CudaExperts& first = ExpertsAt(call, left.front());
  std::vector<size_t> alike, others;
  for (const size_t i : left) {
    const CudaExperts& experts = ExpertsAt(call, i);
    const bool is_alike = experts.first().spec().precision == first.first().spec().precision &&
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

Buffer UploadMixedViews(DeviceContext& ctx, const std::vector<std::unique_ptr<LinearWeight>>& experts) {
  std::vector<ScWeightView> views;
  for (const auto& expert : experts) views.push_back(static_cast<const CudaLinear&>(*expert).mixed()->rest.view);
  return DeviceCopy(ctx.device, views);
}

}  // namespace

int64_t CudaExperts::bytes() const {
  auto bytes = static_cast<int64_t>(views_.bytes());
  for (const auto& expert : experts_) bytes += expert->bytes();
  return bytes;
}

bool CudaExperts::is_grouped() const {
  return std::any_of(experts_.begin(), experts_.end(), [](const auto& expert) {
    const MixedWeight* mixed = static_cast<const CudaLinear&>(*expert).mixed();
    return mixed != nullptr &&
           (!mixed->own.empty() || mixed->factors() != nullptr || !mixed->rest.lengths->view().alone());
  });
}

std::unique_ptr<CudaExperts> MakeExperts(DeviceContext& ctx, std::vector<std::unique_ptr<LinearWeight>> experts) {
  const LinearSpec& spec = experts.front()->spec();
  if (spec.sc != nullptr && (spec.sc->config.granularity != ScGranularity::kPerRow || spec.sc->config.group_a != 1)) {
    throw InvalidInput(
        "experts: activations whose scales belong to several rows are not implemented by the cuda backend; use "
        "granularity=per_row and group_a=1");
  }
  const MixedWeight* mixed = static_cast<const CudaLinear&>(*experts.front()).mixed();
  for (const auto& expert : experts) {
    if (spec.precision != Precision::kFp32) break;
    const DType dtype = static_cast<const CudaLinear&>(*expert).view<ExactWeightView>().dtype;
    if (dtype == static_cast<const CudaLinear&>(*experts.front()).view<ExactWeightView>().dtype) continue;
    throw InvalidInput("experts: exact weights of several types are not implemented by the cuda backend");
  }
  Buffer views = mixed != nullptr                     ? UploadMixedViews(ctx, experts)
                 : spec.precision == Precision::kSc   ? UploadViews<ScWeightView>(ctx, experts)
                 : spec.precision == Precision::kFp32 ? UploadViews<ExactWeightView>(ctx, experts)
                                                      : UploadViews<HalfWeightView>(ctx, experts);
  return std::make_unique<CudaExperts>(std::move(experts), std::move(views));
}

void LaunchExpertLinear(DeviceContext& ctx, const ExpertLinearCall& call) {
  CheckExpertLinear(call);
  const int64_t slots = call.chosen.numel();
  if (slots == 0) return;
  if (call.table != nullptr) {
    Scratch scratch(ctx.workspace);
    return LaunchExpertLinear(ctx, AfterFunction(ctx, scratch, call));
  }
  const SiteReporter reporter = ctx.Reporter(call.site);
  const RowSource source = SourceOf(call);
  std::vector<size_t> left(call.weights.size());
  std::iota(left.begin(), left.end(), size_t{0});
  bool combined = false;
  while (!left.empty()) {
    const std::vector<size_t> places = TakeAlike(call, left);
    switch (ExpertsAt(call, places.front()).first().spec().precision) {
      case Precision::kSc:
        if (ExpertsAt(call, places.front()).first().mixed() != nullptr) {
          RunMixed(ctx, call, source, places, reporter);
        } else {
          combined = RunSc(ctx, call, source, places, reporter);
        }
        break;
      case Precision::kFp32:
        for (const size_t i : places) {
          RunExact(ctx, ExpertsAt(call, i), source, call.x.dim(0), slots, SlotsOf(call, i), reporter);
        }
        break;
      case Precision::kFp16: RunHalf(ctx, call, source, places, reporter); break;
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
