// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/experts/lookup_parts.cuh"

namespace stoch::cuda {
namespace experts {
namespace {

template <bool kTop256>
__global__ void __launch_bounds__(kThreads, 1) ScExpertLookupKernel(const __grid_constant__ LookupArgs args) {
  extern __shared__ __align__(256) uint8_t shared[];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
  const int block = static_cast<int>(blockIdx.x);
  const int begin = block * args.units_each + min(block, args.units_rest);
  const int end = begin + args.units_each + (block < args.units_rest ? 1 : 0);
  const int first_chunk = args.by_row_blocks.Quotient(begin);
  const int last_chunk = args.by_row_blocks.Quotient(end - 1);
  const int first_row = args.by_chunks.Quotient(first_chunk);
  Stage stage = decode::MakeStage<1, true>(shared, args.staged);
  float* const norms[2] = {stage.norm_lanes, reinterpret_cast<float*>(stage.rows + args.staged * kDecodeStageBytes)};
  auto* weights = reinterpret_cast<SlotWeights*>(norms[1] + kRowLanes);
  if (threadIdx.x >= kChunkDims) stage.norm_lanes = norms[1];  // of the chunk whose elements this thread has

  // Where every expert's matrices are: a look in memory less once the choice is known.
  SlotWeights* places = weights + args.max_tasks;
  if (static_cast<int>(threadIdx.x) < args.places) {
    const int matrix = args.by_experts.Quotient(static_cast<int>(threadIdx.x));
    const ScWeightView& view = args.views[matrix][static_cast<int>(threadIdx.x) - matrix * args.experts];
    places[threadIdx.x] = {view.codes, view.scales};
  }
  int count = min(args.staged, last_chunk - first_chunk + 1);
  Element element = MakeSlotElement(args, first_chunk, count);
  StartNext();
  __syncthreads();
  WaitForPrevious();
  decode::LoadElement(args, element);
  const int tasks = (args.by_chunks.Quotient(last_chunk) + 1 - first_row) * args.row_tasks();
  for (int i = static_cast<int>(threadIdx.x); i < tasks; i += kThreads) {
    const int slot = args.by_matrices.Quotient(i);
    const int matrix = i - slot * args.matrices;
    const int expert = args.chosen[first_row * args.row_slots + slot];
    if (args.places > 0) {
      weights[i] = places[matrix * args.experts + expert];
    } else {
      const ScWeightView& view = args.views[matrix][expert];
      weights[i] = {view.codes, view.scales};
    }
  }
  if (args.prologue == Prologue::kRmsNorm) SlotNorms(args, first_chunk, count, norms);
  __syncthreads();

  uint4 ring[kRing];
  Walk current{weights, first_row, first_chunk, begin - first_chunk * args.row_blocks + warp};
  current.Locate(args, begin + warp < end, lane);
#pragma unroll
  for (int t = 0; t < kRing; ++t) ring[t] = decode::LoadTile(current.unit, t);
  float scale = decode::LoadScale(current.unit);

  MultiplyUnits<kTop256>(args, stage, current, ring, scale, begin + warp, end, first_chunk, last_chunk, [&](int chunk) {
    if (chunk != first_chunk) {
      count = min(args.staged, last_chunk - chunk + 1);
      element = MakeSlotElement(args, chunk, count);
      decode::LoadElement(args, element);
      __syncthreads();  // everybody is done with the chunks before
      if (args.prologue == Prologue::kRmsNorm) {
        SlotNorms(args, chunk, count, norms);
        __syncthreads();
      }
    }
    decode::QuantizeChunks<kTop256>(args, element, count, stage, [&](int, uint32_t) { return decode::CountsOf(args); });
  });
  if (args.combine.top_k > 0) {
    CombineRows(args, reinterpret_cast<float*>(stage.rows));
  } else {
    CombineSlots(args);
  }
}

}  // namespace
}  // namespace experts

void LaunchScExpertLookup(DeviceContext& ctx, const ExpertPlan& plan, const ExpertShape& shape, const ScTables& tables,
                          const RowSource& source, const int32_t* chosen, const FiniteReporter& reporter,
                          const ScExpertTask* tasks, int count, const ExpertCombine& combine) {
  STOCH_CHECK(plan.kernel == ExpertKernel::kLookup && count == shape.matrices && count <= kMaxScTasks);
  STOCH_CHECK(combine.top_k == 0 || CanCombine(plan, shape, combine.top_k));
  experts::LookupArgs args = experts::MakeArgs(shape, tables, source, reporter, tasks, count);
  Scratch scratch(ctx.workspace);
  const int64_t row_units = int64_t{args.row_blocks} * args.dims.chunks;
  const int64_t rows_at_once = plan.rows_at_once - (combine.top_k > 0 ? plan.rows_at_once % combine.top_k : 0);
  args.products = scratch.Take<float>(rows_at_once * row_units * kTileRows);
  args.combine = combine;
  args.barrier = ctx.grid_barrier();
  const auto kernel = tables.top_is_256 ? experts::ScExpertLookupKernel<true> : experts::ScExpertLookupKernel<false>;
  for (int64_t first = 0; first < shape.rows; first += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, shape.rows - first);
    const ExpertLookupPlan cut = PlanExpertLookup(ctx.traits, tasks[0].first.dims, shape, rows);
    const int64_t units = rows * row_units;
    STOCH_CHECK(units * kTileRows <= INT32_MAX && cut.staged <= decode::kMaxFusedChunks);
    args.tokens = static_cast<int>(rows);
    args.chosen = chosen + first * shape.row_slots;
    args.x = source.x + first * args.x_stride;
    args.y = source.second() == nullptr ? nullptr : source.second() + first * args.y_stride;
    for (int i = 0; i < count; ++i) args.outs[i] = tasks[i].out + first * shape.row_slots * tasks[i].out_stride;
    args.units_each = static_cast<int>(units / cut.blocks);
    args.units_rest = static_cast<int>(units % cut.blocks);
    args.staged = cut.staged;
    args.max_tasks = cut.max_tasks;
    args.places = cut.places;
    if (combine.top_k > 0) {
      const int64_t first_row = first / combine.top_k;
      args.combine.weights = combine.weights + first;
      args.combine.out = combine.out + first_row * combine.out_stride;
    }
    AllowShared(ctx, kernel, static_cast<size_t>(cut.shared_bytes));
    LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(cut.blocks)), dim3(experts::kThreads),
                     static_cast<size_t>(cut.shared_bytes), args);
  }
}

}  // namespace stoch::cuda
