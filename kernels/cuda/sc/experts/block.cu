// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/dispatch.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/sc/experts/block.h"
#include "kernels/cuda/sc/experts/lookup_parts.cuh"

namespace stoch::cuda {
namespace experts {
namespace {

constexpr int kQuantizers = decode::kMaxFusedChunks * kChunkDims;  // threads that quantize the row
constexpr int kQuantizeBarrier = 1;
constexpr int kDots = (kThreads - kQuantizers) / kDotLanes;  // experts whose logits a block makes at a time
constexpr int kAhead = 16;                                   // 16-byte loads in flight of a thread
constexpr int kEarly = decode::Cut<1>::kEarly;               // of a lane's tiles of down, before gate and up are summed
constexpr int kMatrices = 3;                                 // gate, up and down
static_assert(kQuantizers == kRowLanes && kDots == kExpertBlockDots);

struct BlockArgs {
  LookupArgs up;
  LookupArgs down;
  RouteArgs route;
  const void* router = nullptr;  // its weights, rows padded_cols apart
  DType router_type = DType::kF32;
  int padded_cols = 0;
  uint32_t* words = nullptr;  // [experts]: logits (exchange.cuh)
  FiniteReporter router_reporter;
};

// Shared memory behind what a stage of kMaxFusedChunks takes.
struct BlockShared {
  Stage stage;
  float* norm;          // [padded_cols]; then [kQuantizers] sums of up
  float* xs;            // [padded_cols]: f(x)
  SlotWeights* places;  // [kMatrices][experts]
  SlotWeights* up;      // [top_k][2]
  SlotWeights* down;    // [top_k]
};
__device__ __forceinline__ BlockShared MakeShared(const BlockArgs& args, uint8_t* shared) {
  BlockShared s;
  s.stage = decode::MakeStage<1, true>(shared, decode::kMaxFusedChunks);
  s.norm = reinterpret_cast<float*>(shared + decode::kFusedBytes + decode::kMaxFusedChunks * kDecodeStageBytes);
  s.xs = s.norm + max(args.padded_cols, kQuantizers);
  s.places = reinterpret_cast<SlotWeights*>(s.xs + args.padded_cols);
  s.up = s.places + kMatrices * args.route.experts;
  s.down = s.up + 2 * args.route.top_k;
  return s;
}

// The router's logits of some experts, a half warp each of the warps that do not quantize.
struct Dots {
  const BlockArgs& args;
  uint4 bits[kAhead];

  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % kDotLanes; }
  __device__ static int First() {
    return static_cast<int>(blockIdx.x) +
           (static_cast<int>(threadIdx.x) - kQuantizers) / kDotLanes * static_cast<int>(gridDim.x);
  }
  __device__ int vector() const { return args.router_type == DType::kF32 ? 4 : 8; }
  __device__ int steps() const { return args.padded_cols / (kDotLanes * vector()); }

  __device__ __forceinline__ void Load(int expert, int first) {
    const int64_t at = static_cast<int64_t>(expert) * args.padded_cols;
    const auto* from =
        static_cast<const uint4*>(args.router) + at / vector() + static_cast<int64_t>(first) * kDotLanes + Lane();
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (first + k < steps()) bits[k] = LoadStreaming(from + k * kDotLanes);
    }
  }
  // acc of the loaded steps.
  template <typename T>
  __device__ __forceinline__ float Add(float acc, int first, const float* xs) const {
    constexpr int kVector = 16 / sizeof(T);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (first + k >= steps()) break;
      float w[kVector];
      Expand(bits[k], w, T());
      const float* x = xs + (first + k) * (kDotLanes * kVector) + Lane();
#pragma unroll
      for (int v = 0; v < kVector; ++v) acc = Fma(x[v * kDotLanes], w[v], acc);
    }
    return acc;
  }
  // The first expert's first steps are loaded.
  __device__ __forceinline__ void Post(const float* xs) {
    const unsigned half = 0xffffu << (threadIdx.x & kDotLanes);
    for (int expert = First(); expert < args.route.experts; expert += kDots * static_cast<int>(gridDim.x)) {
      float y = 0.0f;
      for (int first = 0; first < steps(); first += kAhead) {
        if (first > 0 || expert != First()) Load(expert, first);
        y = args.router_type == DType::kF32    ? Add<float>(y, first, xs)
            : args.router_type == DType::kBF16 ? Add<__nv_bfloat16>(y, first, xs)
                                               : Add<__half>(y, first, xs);
      }
#pragma unroll
      for (int s = kDotLanes / 2; s > 0; s /= 2) y = y + __shfl_down_sync(half, y, s, kDotLanes);
      if (Lane() != 0) continue;
      y = PlusZero(y);
      if (!IsFinite(y)) args.router_reporter.Report();
      cuda::Post(args.words + expert, SumWord(y));
    }
  }
};

// One warp waits for all logits, chooses, and puts down where the chosen matrices are.
template <int kHeld>
__device__ __forceinline__ void Choose(const BlockArgs& args, const BlockShared& s) {
  const RouteArgs& route = args.route;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  uint32_t words[kHeld];
  bool is_there = false;
  do {
    is_there = true;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      words[k] = lane + k * kWarp < route.experts ? Peek(args.words + lane + k * kWarp) : 1u;
      is_there = is_there && words[k] != 0;
    }
  } while (!is_there);
  __syncwarp();
  float p[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k) p[k] = FromSumWord(words[k]);
  const float first = __shfl_sync(kAllLanes, p[0], 0);
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    if (lane + k * kWarp >= route.experts) p[k] = first;
  }
  const RouteChoice own = ChooseRow(route.experts, route.top_k, route.normalize, p);
  if (lane >= route.top_k) return;
  s.up[2 * lane] = s.places[own.index];
  s.up[2 * lane + 1] = s.places[route.experts + own.index];
  s.down[lane] = s.places[2 * route.experts + own.index];
  if (blockIdx.x != 0) return;
  route.chosen[lane] = own.index;
  route.weights[lane] = own.weight;
}

// The units of a block.
struct BlockUnits {
  int begin, end, first_chunk, last_chunk;
  __device__ __forceinline__ explicit BlockUnits(const LookupArgs& args) {
    const int block = static_cast<int>(blockIdx.x);
    begin = block * args.units_each + min(block, args.units_rest);
    end = begin + args.units_each + (block < args.units_rest ? 1 : 0);
    first_chunk = args.by_row_blocks.Quotient(begin);
    last_chunk = args.by_row_blocks.Quotient(end - 1);
  }
};

// Sends for what does not depend on other kernels: nobody waits for it in front of WaitForPrevious.
__device__ __forceinline__ void StageEarly(const BlockArgs& args, const BlockShared& s) {
  static_assert(sizeof(SlotWeights) == 16 && offsetof(SlotWeights, scales) == 8);
  for (int e = static_cast<int>(threadIdx.x); e < args.route.experts; e += kThreads) {
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const ScWeightView* view = (m < 2 ? args.up.views[m] : args.down.views[0]) + e;
      const uint32_t to = SharedAddress(s.places + m * args.route.experts + e);
      CopyAsync8(to, &view->codes);
      CopyAsync8(to + 8, &view->scales);
    }
  }
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < args.padded_cols; i += kThreads) {
    const bool have = i < args.up.dims.dims;
    CopyAsync4(SharedAddress(s.norm + i), args.up.y + (have ? i : 0), have);
  }
  CommitCopies();
}

// f(x) of the row.
__device__ __forceinline__ void StageRow(const BlockArgs& args, const BlockShared& s) {
  const int thread = static_cast<int>(threadIdx.x);
  const int cols = args.up.dims.dims;
  if (thread < kRowLanes) {
    NormLanes(args.up.x, cols, s.stage.norm_lanes);
  } else {
#pragma unroll 8
    for (int i = thread - kRowLanes; i < cols; i += kThreads - kRowLanes) s.xs[i] = args.up.x[i];
  }
  WaitForAllCopies();
  __syncthreads();
  const float r = FoldNorm(s.stage.norm_lanes, cols, args.up.norm_eps);
  bool finite = true;
#pragma unroll 4
  for (int i = thread; i < args.padded_cols; i += kThreads) {
    const float value = i < cols ? ApplyPrologue(Prologue::kRmsNorm, s.xs[i], s.norm[i], r) : 0.0f;
    finite = finite && IsFinite(value);
    s.xs[i] = value;
  }
  if (!finite) args.router_reporter.Report();
  __syncthreads();
}

// Quantizes and stages chunks of the row, by its first kQuantizers threads at least.
template <bool kTop256, typename Sync>
__device__ __forceinline__ void StageUp(const BlockArgs& args, const BlockShared& s, int chunk, int last,
                                        const Sync& sync) {
  const int count = min(args.up.staged, last - chunk + 1);
  const int slot = static_cast<int>(threadIdx.x) / kChunkDims;
  const int d = static_cast<int>(threadIdx.x) % kChunkDims;
  const int i = (chunk + slot) * args.up.dims.chunk_d + d;
  const bool used = slot < count && d < args.up.dims.chunk_d && i < args.up.dims.dims;
  decode::QuantizeValues<kTop256>(
      args.up, used ? s.xs[i] : 0.0f, slot, count, s.stage, [&](int, uint32_t) { return decode::CountsOf(args.up); },
      sync);
}

// Sums products of gate and of up, half of the block each, applies SiLU, quantizes and stages.
template <bool kTop256, typename Summed>
__device__ __forceinline__ void StageDown(const BlockArgs& args, const BlockShared& s, int chunk, int last,
                                          const Summed& summed) {
  const LookupArgs& up = args.up;
  const LookupArgs& down = args.down;
  const int count = min(down.staged, last - chunk + 1);
  const int matrix = static_cast<int>(threadIdx.x) / kQuantizers;
  const int thread = static_cast<int>(threadIdx.x) % kQuantizers;
  const int slot = thread / kChunkDims;
  const int d = thread % kChunkDims;
  const int row = down.by_chunks.Quotient(chunk + slot);
  const int i = (chunk + slot - row * down.dims.chunks) * down.dims.chunk_d + d;
  const bool used = slot < count && d < down.dims.chunk_d && i < down.dims.dims;
  float y = 0.0f;
  if (used) {
    const int item = (2 * row + matrix) * up.matrix_blocks + i / kTileRows;
    y = decode::SumChunks(up.products + static_cast<int64_t>(item) * up.dims.chunks * kTileRows + i % kTileRows,
                          up.dims.chunks);
    if (!IsFinite(y)) up.reporter.Report();
  }
  if (matrix == 1) s.norm[thread] = y;
  __syncthreads();
  summed();
  const float value = used && matrix == 0 ? ApplyPrologue(Prologue::kSiluMul, y, s.norm[thread], 0.0f) : 0.0f;
  decode::QuantizeValues<kTop256>(
      down, value, matrix == 0 ? slot : count, count, s.stage, [&](int, uint32_t) { return decode::CountsOf(down); },
      [] { __syncthreads(); });
}

template <bool kTop256>
__global__ void __launch_bounds__(kThreads, 1) ScExpertBlockKernel(const __grid_constant__ BlockArgs args) {
  extern __shared__ __align__(256) uint8_t shared[];
  const BlockShared s = MakeShared(args, shared);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
  const auto sync = [] { __syncthreads(); };
  StartNext();
  const BlockUnits up(args.up);
  {
    Dots dots{args};
    if (warp >= kQuantizers / kWarp && Dots::First() < args.route.experts) dots.Load(Dots::First(), 0);
    StageEarly(args, s);
    WaitForPrevious();
    StageRow(args, s);
    if (warp < kQuantizers / kWarp) {
      StageUp<kTop256>(args, s, up.first_chunk, up.last_chunk, [] {
        asm volatile("bar.sync %0, %1;" ::"n"(kQuantizeBarrier), "n"(kQuantizers) : "memory");
      });
    } else {
      dots.Post(s.xs);
      __syncwarp();
      if (warp == kWarps - 1) args.route.experts <= 4 * kWarp ? Choose<4>(args, s) : Choose<kHeldLanes>(args, s);
    }
    __syncthreads();
  }

  uint4 ring[kRing];
  Walk current{s.up, 0, up.first_chunk, up.begin - up.first_chunk * args.up.row_blocks + warp};
  current.Locate(args.up, up.begin + warp < up.end, lane);
#pragma unroll
  for (int t = 0; t < kRing; ++t) ring[t] = decode::LoadTile(current.unit, t);
  float scale = decode::LoadScale(current.unit);
  MultiplyUnits<kTop256>(args.up, s.stage, current, ring, scale, up.begin + warp, up.end, up.first_chunk, up.last_chunk,
                         [&](int chunk) {
                           if (chunk == up.first_chunk) return;
                           __syncthreads();  // everybody is done with the chunks before
                           StageUp<kTop256>(args, s, chunk, up.last_chunk, sync);
                         });

  const unsigned arrived = args.up.barrier.Arrive(sync);
  const BlockUnits down(args.down);
  current = Walk{s.down, 0, down.first_chunk, down.begin - down.first_chunk * args.down.row_blocks + warp};
  current.Locate(args.down, down.begin + warp < down.end, lane);
#pragma unroll
  for (int t = 0; t < kEarly; ++t) ring[t] = decode::LoadTile(current.unit, t);
  scale = decode::LoadScale(current.unit);
  args.up.barrier.Await(arrived, sync);
  // Everybody has read the logits.
  if (blockIdx.x == 0) {
    for (int e = static_cast<int>(threadIdx.x); e < args.route.experts; e += kThreads) args.words[e] = 0;
  }
  MultiplyUnits<kTop256>(args.down, s.stage, current, ring, scale, down.begin + warp, down.end, down.first_chunk,
                         down.last_chunk, [&](int chunk) {
                           if (chunk != down.first_chunk) __syncthreads();
                           StageDown<kTop256>(args, s, chunk, down.last_chunk, [&] {
                             if (chunk != down.first_chunk) return;
#pragma unroll
                             for (int t = kEarly; t < kRing; ++t) ring[t] = decode::LoadTile(current.unit, t);
                           });
                         });
  CombineRows(args.down, reinterpret_cast<float*>(s.stage.rows));
}

void CutUnits(LookupArgs& args, int64_t units, int blocks, int staged) {
  STOCH_CHECK(units >= blocks && units * kTileRows <= INT32_MAX && staged <= decode::kMaxFusedChunks);
  args.units_each = static_cast<int>(units / blocks);
  args.units_rest = static_cast<int>(units % blocks);
  args.staged = staged;
}

}  // namespace
}  // namespace experts

void LaunchScExpertBlock(DeviceContext& ctx, const ExpertBlockPlan& plan, const RouteArgs& route,
                         const ExpertRouter& router, const ScExpertPart& up, const ScExpertPart& down,
                         const ExpertCombine& combine) {
  using experts::LookupArgs;
  STOCH_CHECK(plan.blocks > 0 && up.shape.matrices == 2 && down.shape.matrices == 1 && FitsWarp(route));
  STOCH_CHECK(router.padded_cols <= plan.padded_cols && route.experts == up.shape.experts);
  Scratch scratch(ctx.workspace);
  const auto fill = [&](const ScExpertPart& part, int staged) {
    LookupArgs args = experts::MakeArgs(part.shape, *part.tables, part.source, part.reporter, part.tasks,
                                        static_cast<int>(part.shape.matrices));
    args.tokens = static_cast<int>(part.shape.rows);
    args.x = part.source.x;
    args.y = part.source.second();
    args.barrier = ctx.grid_barrier();
    const int64_t units = part.shape.rows * args.row_blocks * args.dims.chunks;
    args.products = scratch.Take<float>(units * kTileRows);
    experts::CutUnits(args, units, plan.blocks, staged);
    return args;
  };
  experts::BlockArgs args;
  args.up = fill(up, plan.up_staged);
  args.down = fill(down, plan.down_staged);
  args.down.combine = combine;
  args.route = route;
  args.router = router.data;
  args.router_type = router.dtype;
  args.padded_cols = static_cast<int>(router.padded_cols);
  args.words = reinterpret_cast<uint32_t*>(ctx.flags());
  args.router_reporter = router.reporter;
  const bool top = up.tables->top_is_256 || down.tables->top_is_256;
  const auto kernel = top ? experts::ScExpertBlockKernel<true> : experts::ScExpertBlockKernel<false>;
  AllowShared(ctx, kernel, static_cast<size_t>(plan.shared_bytes));
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(experts::kThreads),
                   static_cast<size_t>(plan.shared_bytes), args);
}

}  // namespace stoch::cuda
