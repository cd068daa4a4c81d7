// SPDX-License-Identifier: Apache-2.0
// Prepares rows for the fast kernels of mixed stream lengths (prepare.h). One block per row, or a cluster of blocks per
// row if there are few, long rows. The kernel runs before every linear of a decode step and must be short, so f(x)
// stays in shared memory from the RMSNorm to the metrics that choose stream lengths and the quantizer.
#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/lengths.cuh"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/mixed/prepare.h"
#include "kernels/cuda/prologue/norm_factor.cuh"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/plan/linear/mixed.h"

namespace stoch::cuda {
namespace {

constexpr int kWarps = kPrepareWarps;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMaxChunkDims = 128;
constexpr int kEach = kMaxChunkDims / kWarp;  // elements of a chunk that one lane quantizes
constexpr int kAhead = 4;                     // elements that a thread loads before it processes any

// f(x), its dimensions, and where codes [tokens][dims.padded] and scales [dims.chunks][tokens] go.
struct PrepareArgs {
  RowSource source;
  ScDims dims;
  int64_t tokens = 0;
  ScopeParams params;
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  SiteReporter reporter;
  int count = 0;
  // Whether any task has a metric of whole rows that needs their norm.
  bool needs_l2 = false;
  bool needs_amax = false;  // whether any task has a metric of whole rows
  int ranks = 1;            // blocks per row (cluster size)
  int64_t rank_chunks = 0;  // chunks of a row that one block takes
  PrepareTask tasks[kMaxScTasks];
};

struct PrepareShared {
  float fold[kRowLanes];
  uint32_t largest[kWarps];
  uint32_t of_block;  // largest magnitude in this block's share of the row, as bits
};
static_assert(sizeof(PrepareShared) + 1024 == kMixedPrepareStaticBytes && kMaxChunkDims == kDecodeChunkDims);

// Prefetches the first line of each array of a rule into the L2, from which the weights of earlier kernels may have
// evicted it.
__device__ void PrefetchRule(const LengthView& view) {
  if (view.num_thresholds > 0) PrefetchL2Line(view.thresholds);
  if (view.slot_of != nullptr) PrefetchL2Line(view.slot_of);
}

// Writes the slots of one row for tasks whose metric is of the whole row, one warp per task so that the waits of the
// tasks overlap. Called by all threads of the row's block 0, when every block has written of_block. values: f(x); norms
// need the whole row in this block (ranks 1).
__device__ void DispatchRow(const PrepareArgs& args, int64_t row, const float* values, PrepareShared& shared) {
  uint32_t bits = 0;
  for (int r = 0; r < args.ranks; ++r) bits = max(bits, *Cluster::At(&shared.of_block, r));
  const float amax = BitsToFloat(bits);
  float l2 = 0.0f;
  if (args.needs_l2) {
    __syncthreads();  // the RMSNorm may still read `fold`
    if (threadIdx.x < kRowLanes) {
      float lane = 0.0f;
      for (int64_t i = threadIdx.x; i < args.dims.dims; i += kRowLanes) lane = Fma(values[i], values[i], lane);
      shared.fold[threadIdx.x] = lane;
    }
    __syncthreads();
    l2 = Sqrt(FoldShared<kWarp>(shared.fold));
  }
  static_assert(kMaxScTasks <= kWarps);
  const int t = static_cast<int>(threadIdx.x) / kWarp;
  if (t >= args.count) return;
  const PrepareTask& task = args.tasks[t];
  if (task.slots == nullptr || task.view.scope == ScLengthScope::kChunk) return;
  const int level = FixedLevel(task.view, SignedMetric(task.view, amax, l2));
  for (int c = static_cast<int>(threadIdx.x) % kWarp; c < task.per_row; c += kWarp) {
    task.slots[row * task.per_row + c] = SlotOfLevel(task.view, level, c);
  }
}

// Quantizes chunks [first, end) of a row, and picks the slots of tasks with a rule per chunk. One warp per chunk.
// values: f(x) from chunk `first` on.
__device__ void QuantizeChunks(const PrepareArgs& args, int64_t row, const float* values, int64_t first, int64_t end) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t c = first + threadIdx.x / kWarp; c < end; c += kWarps) {
    const int n = static_cast<int>(args.dims.chunk_dims(c));
    const float* from = values + (c - first) * args.dims.chunk_d;
    float x[kEach];
    uint32_t largest = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      x[k] = lane + k * kWarp < n ? from[lane + k * kWarp] : 0.0f;
      largest = max(largest, FloatToBits(x[k]) & 0x7fffffffu);
    }
    Extremes e;
    e.max_abs_bits = __reduce_max_sync(kAllLanes, largest);
    const ScopeQuantizer scope(args.params, e);
    uint8_t* to = args.codes + row * args.dims.padded + c * args.dims.chunk_stride;
    const int padded = static_cast<int>(args.dims.chunk_padded(c));
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int d = lane + k * kWarp;
      if (d < padded) to[d] = d < n ? scope.Code(args.params, x[k]) : uint8_t{0};
    }
    if (lane < args.count) {
      const PrepareTask& task = args.tasks[lane];
      if (task.slots != nullptr && task.view.scope == ScLengthScope::kChunk) {
        const int level = FixedLevel(task.view, BitsToFloat(e.max_abs_bits));
        task.slots[row * task.per_row + c] = SlotOfLevel(task.view, level, c);
      }
    }
    if (lane != 0) continue;
    args.scales[c * args.tokens + row] = scope.scale;
    if (!scope.finite) args.reporter.Report();
  }
}

// Computes f(x), slots, codes and scales of one row, by `ranks` blocks that divide the row's chunks. values: this
// block's part of f(x).
template <Prologue P>
__global__ void __launch_bounds__(kThreads) PrepareRowsKernel(const __grid_constant__ PrepareArgs args) {
  extern __shared__ __align__(16) float values[];  // f(x) of this block's chunks
  __shared__ PrepareShared shared;
  const int64_t row = blockIdx.x / static_cast<unsigned>(args.ranks);
  const int64_t rank = blockIdx.x % static_cast<unsigned>(args.ranks);
  const int64_t dims = args.dims.dims;
  const int64_t first = rank * args.rank_chunks;
  const int64_t last = min(first + args.rank_chunks, args.dims.chunks);
  const int64_t begin = first * args.dims.chunk_d;
  const int64_t end = min(last * args.dims.chunk_d, dims);
  const bool is_cluster = args.ranks > 1 && args.needs_amax;
  StartNext();
  if (static_cast<int>(threadIdx.x) < args.count) {
    const PrepareTask& task = args.tasks[threadIdx.x];
    if (task.slots != nullptr) PrefetchRule(task.view);
  }
  // A thread issues its first loads together: the weights of RMSNorm before the row is available, the row before the
  // norm's factor is.
  constexpr bool kLoadsAhead = P != Prologue::kNone;
  const int64_t mine = begin + static_cast<int>(threadIdx.x);
  const auto load = [&](const float* from, float(&to)[kAhead]) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) to[k] = mine + k * kThreads < end ? from[mine + k * kThreads] : 0.0f;
  };
  [[maybe_unused]] float first_x[kAhead], first_y[kAhead];
  if constexpr (P == Prologue::kRmsNorm) load(args.source.norm_weight, first_y);
  WaitForPrevious();
  args.reporter.Begin();
  const float* x = args.source.x + row * args.source.x_stride;
  const float* x2 = P == Prologue::kSiluMul ? args.source.x2 + row * args.source.x2_stride : nullptr;
  if constexpr (kLoadsAhead) load(x, first_x);
  if constexpr (P == Prologue::kSiluMul) load(x2, first_y);
  float r = 0.0f;
  if constexpr (P == Prologue::kRmsNorm) r = NormFactor(x, dims, args.source.norm_eps, shared.fold);
  uint32_t largest = 0;
  const auto put = [&](int64_t i, float value) {
    values[i - begin] = value;
    largest = max(largest, FloatToBits(value) & 0x7fffffffu);
  };
  if constexpr (kLoadsAhead) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (mine + k * kThreads < end) put(mine + k * kThreads, ApplyPrologue(P, first_x[k], first_y[k], r));
    }
  }
#pragma unroll(kLoadsAhead ? 1 : 8)
  for (int64_t i = mine + (kLoadsAhead ? kAhead * kThreads : 0); i < end; i += kThreads) {
    put(i, PrologueValue<P>(args.source, x, x2, r, i));
  }
  largest = __reduce_max_sync(kAllLanes, largest);
  if (threadIdx.x % kWarp == 0) shared.largest[threadIdx.x / kWarp] = largest;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    static_assert(kWarps == kWarp);
    const uint32_t of_block = __reduce_max_sync(kAllLanes, shared.largest[threadIdx.x]);
    if (threadIdx.x == 0) shared.of_block = of_block;
  }
  if (is_cluster) Cluster::Arrive();
  QuantizeChunks(args, row, values, first, last);
  if (!args.needs_amax) return;
  if (is_cluster) {
    Cluster::Wait();
  } else {
    __syncthreads();
  }
  if (rank == 0) DispatchRow(args, row, values, shared);
  if (is_cluster) Cluster::Sync();  // keeps shared memory of all blocks alive while block 0 reads it
}

}  // namespace

ScActivationView LaunchPrepareRows(DeviceContext& ctx, Scratch& scratch, const RowSource& source, int64_t tokens,
                                   const ScDims& dims, int q_max, const PrepareTask* tasks, int count,
                                   const SiteReporter& reporter) {
  STOCH_CHECK(count <= kMaxScTasks && dims.chunk_d <= kMaxChunkDims);
  PrepareArgs args;
  args.source = source;
  args.dims = dims;
  args.tokens = tokens;
  args.params = {ScCode::kSignMagnitude, q_max, kScaleFloor};
  args.codes = scratch.Take<uint8_t>(tokens * dims.padded);
  args.scales = scratch.Take<float>(tokens * dims.chunks);
  args.reporter = reporter;
  args.count = count;
  for (int i = 0; i < count; ++i) {
    args.tasks[i] = tasks[i];
    const LengthView& view = tasks[i].view;
    const bool of_row = tasks[i].slots != nullptr && view.scope != ScLengthScope::kChunk;
    args.needs_l2 = args.needs_l2 || (of_row && view.metric != ScMetric::kAmax);
    args.needs_amax = args.needs_amax || of_row;
  }
  const PreparePlan plan = PlanPrepare(ctx.traits, dims, tokens, args.needs_l2);
  args.ranks = plan.ranks;
  args.rank_chunks = plan.rank_chunks;
  const auto kernel = DispatchPrologue(source.prologue, [](auto p) { return PrepareRowsKernel<p>; });
  LaunchClusters(ctx, kernel, dim3(static_cast<unsigned>(tokens * plan.ranks)), kThreads,
                 static_cast<size_t>(plan.shared_bytes), args, plan.ranks);
  return {dims, tokens, args.codes, args.scales};
}

}  // namespace stoch::cuda
