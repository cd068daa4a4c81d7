// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/decode/combine.cuh"
#include "kernels/cuda/sc/decode/stage.cuh"
#include "kernels/cuda/sc/decode/tile.cuh"
#include "kernels/cuda/sc/experts/lookup.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace experts {
namespace {

using decode::Divisor;
using decode::Element;
using decode::kChunkDims;
using decode::kChunkTiles;
using decode::kStageBytes;
using decode::Stage;
using decode::Unit;

constexpr int kWarps = decode::Cut<1>::kWarps;
constexpr int kThreads = decode::Cut<1>::kThreads;
constexpr int kRing = decode::Cut<1>::kRing;    // weight tiles that a warp has in flight
constexpr int kEarly = decode::Cut<1>::kEarly;  // weight tiles of a warp's first loads; see load_first
constexpr int kSumAhead = 16;                   // products a lane has in flight while it sums chunks
static_assert(kThreads == decode::kMaxFusedChunks * kRowLanes);
static_assert(kExpertNormBytes == kRowLanes * sizeof(float));
static_assert(kMaxCombinedSlots * kWarp * sizeof(float) <= kStageBytes && kMaxCombinedSlots <= kWarp);

// The weight matrix of a (slot, matrix) pair: codes and scales of the slot's expert.
struct SlotWeights {
  const uint8_t* codes;
  const float* scales;
};
static_assert(sizeof(SlotWeights) == kExpertTaskBytes);

// Arguments of the look-up kernel. Chunks of all rows of x are numbered row by row: chunk q is chunk q % dims.chunks of
// row q / dims.chunks. DecodeArgs::row_blocks counts the blocks of 32 weight rows that one row of x is multiplied by,
// ordered [slot][matrix][row block of the matrix]; DecodeArgs::tokens is the number of rows of x.
struct LookupArgs : decode::DecodeArgs {
  const ScWeightView* views[kMaxScTasks] = {};  // [matrices] weights of every expert, device memory [experts]
  float* outs[kMaxScTasks] = {};                // [matrices] outputs [slots][out_features]
  int64_t out_strides[kMaxScTasks] = {};        // [matrices] floats from one slot's outputs to the next slot's
  const int32_t* chosen = nullptr;              // [slots] expert of each slot, from the first row of x on
  const uint32_t* posted_chosen = nullptr;  // [slots] chosen + 1 as words posted by the kernel before; null: not posted
  int64_t x_stride = 0;                     // floats from one row of x to the next
  int64_t y_stride = 0;                     // floats from one row of y to the next; 0: all rows share y
  int row_slots = 1;                        // slots that share a row of x
  int matrices = 1;                         // matrices of an expert, of one shape
  int places = 0;  // number of (matrix, expert) pairs if a block stages SlotWeights of all pairs; 0: it stages none
  int experts = 0;
  int matrix_blocks = 0;  // row blocks of a matrix
  int matrix_rows = 0;    // output features of a matrix
  int rows_padded = 0;    // rows of a matrix, padded to a multiple of 64
  int max_tasks = 0;      // most (slot, matrix) pairs that the rows of x of one block have
  Divisor by_chunks;
  Divisor by_matrix_blocks;
  Divisor by_matrices;
  Divisor by_experts;
  ExpertCombine combine;
  bool x_settled = false;       // x is complete before this kernel begins and may be read before WaitForPrevious
  bool chosen_settled = false;  // `chosen` is complete before this kernel begins

  // Number of (slot, matrix) pairs of a row of x.
  __device__ __forceinline__ int row_tasks() const { return row_slots * matrices; }
};

// Iterates over the units of one warp, every kWarps-th of its block; a unit is one chunk of 32 weight rows. Most steps
// stay in one matrix and chunk and only add to addresses.
struct Walk {
  const SlotWeights* weights;  // shared memory [rows of x of the block, from first_row on][row_slots][matrices]
  int first_row;               // first row of x of the block
  int chunk;                   // chunk of the current unit, numbered over all rows of x
  int row_block;               // row block of the current unit in its row of x
  int run_end = 0;             // number of the last row block of the current matrix + 1
  Unit unit;                   // addresses of the current unit; no tiles: past the block's last unit

  __device__ __forceinline__ void Step(const LookupArgs& args, bool exists, int lane) {
    row_block += kWarps;
    if (row_block < run_end) {
      unit.codes += args.dims.row_tiles * (kWarps * kTileBytes);
      unit.scale += kWarps * kTileRows;
      if (!exists) unit.tiles = 0;
      return;
    }
    Locate(args, exists, lane);
  }
  __device__ __forceinline__ void Locate(const LookupArgs& args, bool exists, int lane) {
    TakeFrom(Place(args, exists, lane));
  }

  // Locate in two halves, as the expert may not be known yet: Place finds the offsets of the unit in its matrix, which
  // are equal for all experts; TakeFrom adds the addresses of the chosen expert's matrix.
  struct InMatrix {
    int task;       // index in `weights`
    int64_t codes;  // byte offset of this lane's first 16 codes
    int scale;      // index of this lane's scale
  };
  __device__ __forceinline__ InMatrix Place(const LookupArgs& args, bool exists, int lane) {
    run_end = 0;
    unit.tiles = 0;  // a unit without tiles loads nothing
    if (!exists) return {0, 0, 0};
    for (; row_block >= args.row_blocks; row_block -= args.row_blocks) ++chunk;
    const int row = args.by_chunks.Quotient(chunk);
    const int own_chunk = chunk - row * args.dims.chunks;
    const int task = args.by_matrix_blocks.Quotient(row_block);
    run_end = (task + 1) * args.matrix_blocks;
    const int own = row_block - task * args.matrix_blocks;
    const int tile = own * args.dims.row_tiles + own_chunk * args.dims.chunk_tiles;
    unit.tiles = static_cast<int>(static_cast<unsigned>(args.dims.chunk_dims(own_chunk) + kTileDims - 1) / kTileDims);
    return {(row - first_row) * args.row_tasks() + task, static_cast<int64_t>(tile) * kTileBytes + lane * kTileDims,
            own_chunk * args.rows_padded + own * kTileRows + lane};
  }
  __device__ __forceinline__ void TakeFrom(const InMatrix& place) {
    const SlotWeights from = weights[place.task];
    unit.codes = from.codes + place.codes;
    unit.scale = from.scales + place.scale;
  }
};

// As decode::MakeElement, for `count` chunks from `first` on, numbered over all rows of x: sets the addresses of the
// calling thread's element and loads its norm weight, which depends on no earlier kernel.
__device__ __forceinline__ Element MakeSlotElement(const LookupArgs& args, int first, int count) {
  Element e;
  const int d = static_cast<int>(threadIdx.x % kChunkDims);
  e.slot = static_cast<int>(threadIdx.x / kChunkDims);
  const int row = args.by_chunks.Quotient(first + e.slot);
  const int i = (first + e.slot - row * args.dims.chunks) * args.dims.chunk_d + d;
  e.used = e.slot < count && d < args.dims.chunk_d && i < args.dims.dims;
  e.x_at = args.x + row * args.x_stride + i;
  e.y_at = args.y + row * args.y_stride + i;
  if (args.prologue == Prologue::kRmsNorm && e.used) e.y = __ldg(e.y_at);
  return e;
}

// Writes the partial sums of squares (RMSNorm) of the rows of x that chunks `first` and first + 1 belong to, each row
// by one half of the block, to lanes[0] and lanes[1], [kRowLanes] each. count: 1 skips the second chunk.
__device__ __forceinline__ void SlotNorms(const LookupArgs& args, int first, int count, float* const (&lanes)[2]) {
  const int half = static_cast<int>(threadIdx.x) / kRowLanes;
  if (half >= count) return;
  const int row = args.by_chunks.Quotient(first + half);
  const int j = static_cast<int>(threadIdx.x) % kRowLanes;
  NormLane<1, true>({args.x + row * args.x_stride}, args.dims.dims, j, {half == 0 ? lanes[0] : lanes[1]});
}

// Sums products in chunk order and writes the outputs of every slot. A warp sums 32 weight rows of one slot and matrix
// at a time. kPosted: products are posted words, polled as they come; else a grid barrier makes them visible.
template <bool kPosted>
__device__ __forceinline__ void CombineSlots(const LookupArgs& args) {
  if constexpr (!kPosted) {
    const auto sync = [] { __syncthreads(); };
    args.barrier.Await(args.barrier.Arrive(sync), sync);
  }
  uint32_t* const products = kPosted ? args.words : reinterpret_cast<uint32_t*>(args.products);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int items = args.tokens * args.row_blocks;
  const int chunks = args.dims.chunks;
  for (int item = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x); item < items;
       item += kWarps * static_cast<int>(gridDim.x)) {
    const int task = args.by_matrix_blocks.Quotient(item);
    const int slot = args.by_matrices.Quotient(task);
    const int matrix = task - slot * args.matrices;
    const int row = (item - task * args.matrix_blocks) * kTileRows + lane;
    const float y =
        decode::SumChunks<kPosted, kSumAhead>(products + lane + static_cast<int64_t>(item) * chunks * kWarp, chunks);
    if (row >= args.matrix_rows) continue;
    if (!IsFinite(y)) args.reporter.Report();
    args.outs[matrix][slot * args.out_strides[matrix] + row] = y;
  }
}

// Sums products in chunk order and combines the slots of each row (ExpertCombine). A team of warps combines 32 output
// features of a row: one warp per slot, or several slots per warp if there are more slots than warps. kPosted as in
// CombineSlots. shared: [teams][top_k][32] floats.
template <bool kPosted>
__device__ __forceinline__ void CombineRows(const LookupArgs& args, float* shared) {
  const auto sync = [] { __syncthreads(); };
  unsigned arrived = 0;
  if constexpr (!kPosted) arrived = args.barrier.Arrive(sync);
  uint32_t* const products = kPosted ? args.words : reinterpret_cast<uint32_t*>(args.products);
  const ExpertCombine& to = args.combine;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int members = min(to.top_k, kWarps);
  const int teams = kWarps / members;
  const int team = warp / members;
  const int member = warp - team * members;
  const int items = args.tokens / to.top_k * args.row_blocks;
  const int blocks = static_cast<int>(gridDim.x);
  const int chunks = args.dims.chunks;
  float* sums = shared + team * to.top_k * kWarp;
  bool waited = false;
#pragma unroll 1
  for (int first = static_cast<int>(blockIdx.x); first < items || !waited; first += teams * blocks) {
    const int item = first + team * blocks;
    const bool active = team < teams && item < items;
    const int row = active ? args.by_row_blocks.Quotient(item) : 0;
    const int row_block = item - row * args.row_blocks;
    const int col = row_block * kTileRows + lane;
    const bool adds = active && member == 0 && col < args.matrix_rows;
    float* out = to.out + row * to.out_stride + col;
    // Weights and old outputs do not depend on other blocks, so they are loaded while products are awaited.
    float old = 0.0f;
    float weight = 0.0f;
    if (adds) old = *out;
    if (active && member == 0 && lane < to.top_k) weight = to.weights[row * to.top_k + lane];
    if (!waited) {
      if constexpr (kPosted) {
        __syncthreads();  // all warps have read the staged table rows, which `sums` overwrites
      } else {
        args.barrier.Await(arrived, sync);
      }
    }
    waited = true;
    if (active) {
      for (int k = member; k < to.top_k; k += members) {
        const int64_t at = static_cast<int64_t>(row * to.top_k + k) * args.row_blocks + row_block;
        const float y = decode::SumChunks<kPosted, kSumAhead>(products + lane + at * chunks * kWarp, chunks);
        if (col < args.matrix_rows && !IsFinite(y)) args.reporter.Report();
        sums[k * kWarp + lane] = y;
      }
    }
    __syncthreads();
    if (active && member == 0) {
      float sum = __shfl_sync(kAllLanes, weight, 0) * sums[lane];
      for (int k = 1; k < to.top_k; ++k) sum = sum + __shfl_sync(kAllLanes, weight, k) * sums[k * kWarp + lane];
      if (adds) {
        *out = old + sum;
        if (args.post.words != nullptr) PostValue(args.post.words + col, old + sum);
      }
    }
    __syncthreads();  // all warps have read `sums`, which the next item overwrites
  }
}

// The epilogue: writes this block's share of the outputs, which are those of each slot or, if args.combine.top_k > 0,
// sums over the slots of a row. By all threads, after the block's last product. `shared`: the staged table rows,
// overwritten once all warps have read them.
__device__ __forceinline__ void Combine(const LookupArgs& args, float* shared) {
  if (args.combine.top_k > 0 && args.words != nullptr) {
    CombineRows<true>(args, shared);
  } else if (args.combine.top_k > 0) {
    CombineRows<false>(args, shared);
  } else if (args.words != nullptr) {
    CombineSlots<true>(args);
  } else {
    CombineSlots<false>(args);
  }
}

// If args.places > 0, copies the addresses of the codes and scales of every expert's matrices to places
// [matrices][experts] in shared memory. That saves one dependent load after the choice of experts is known.
__device__ __forceinline__ void StagePlaces(const LookupArgs& args, SlotWeights* places) {
  if (static_cast<int>(threadIdx.x) >= args.places) return;
  const int matrix = args.by_experts.Quotient(static_cast<int>(threadIdx.x));
  const ScWeightView& view = args.views[matrix][static_cast<int>(threadIdx.x) - matrix * args.experts];
  places[threadIdx.x] = {view.codes, view.scales};
}

// Writes the addresses of the chosen experts' matrices, for the block's rows of x, from first_row to the row of
// `last_chunk`, to weights [row][slot][matrix] in shared memory. kPolls: the choice is polled from args.posted_chosen.
template <bool kPolls>
__device__ __forceinline__ void FindWeights(const LookupArgs& args, int first_row, int last_chunk,
                                            const SlotWeights* places, SlotWeights* weights) {
  const int tasks = (args.by_chunks.Quotient(last_chunk) + 1 - first_row) * args.row_tasks();
  for (int i = static_cast<int>(threadIdx.x); i < tasks; i += kThreads) {
    const int slot = args.by_matrices.Quotient(i);
    const int matrix = i - slot * args.matrices;
    int expert;
    if constexpr (kPolls) {
      expert = static_cast<int>(Receive(args.posted_chosen + slot)) - 1;
    } else {
      expert = __ldcg(args.chosen + first_row * args.row_slots + slot);
    }
    if (args.places > 0) {
      weights[i] = places[matrix * args.experts + expert];
    } else {
      const ScWeightView& view = args.views[matrix][expert];
      weights[i] = {view.codes, view.scales};
    }
  }
}

// Computes the SC products of the chosen experts; a persistent kernel like ScDecodeKernel (decode/decode.cu). Units are
// numbered chunk by chunk over all rows of x, and each block takes a contiguous range of them.
// kPolls: there is one row of x, complete before the kernel begins, and the previous kernel posts the experts chosen
// for it word by word.
template <bool kTop256, bool kPolls>
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
  if (threadIdx.x >= kChunkDims) stage.norm_lanes = norms[1];  // the thread's element is of staged chunk 1

  SlotWeights* places = weights + args.max_tasks;
  StagePlaces(args, places);
  int count = min(args.staged, last_chunk - first_chunk + 1);
  Element element = MakeSlotElement(args, first_chunk, count);
  __syncthreads();

  uint4 ring[kRing];
  float scale = 0.0f;
  Walk current{weights, first_row, first_chunk, begin - first_chunk * args.row_blocks + warp};
  // Loads this thread's element of x and its partial sum of squares; after a barrier, QuantizeChunks may run.
  const auto take_rows = [&] {
    decode::LoadElement<true>(args, element);
    if (args.prologue == Prologue::kRmsNorm) SlotNorms(args, first_chunk, count, norms);
  };
  const auto counts_of = [&](int, uint32_t) { return decode::CountsOf(args); };
  const auto find_weights = [&] { FindWeights<kPolls>(args, first_row, last_chunk, places, weights); };
  // Loads kEarly tiles. The ring's others follow the count rows, for which all warps wait: loads return in order.
  const auto load_first = [&](const Walk::InMatrix& place) {
    current.TakeFrom(place);
    decode::LoadTiles<0, kEarly>(current.unit, ring);
    scale = decode::LoadScale(current.unit);
  };
  // Data complete before this kernel begins is used before WaitForPrevious: rows of x (gate, up) or `chosen` (down).
  if (kPolls || args.x_settled) {
    take_rows();
    __syncthreads();
    decode::QuantizeChunks<kTop256>(args, element, count, stage, counts_of);
  }
  const Walk::InMatrix place = current.Place(args, begin + warp < end, lane);
  if (kPolls || args.chosen_settled) {
    find_weights();
    __syncthreads();
    load_first(place);
  }
  WaitForPrevious();
  // StartNext is after the wait: `chosen` is complete before the next kernel begins, which may read it early (Settle).
  StartNext();
  args.reporter.Begin();
  if (args.post.words != nullptr) ClearRow(args.post, block, static_cast<int>(gridDim.x));
  if constexpr (!kPolls) {
    if (!args.x_settled) take_rows();
    if (!args.chosen_settled) find_weights();
    __syncthreads();
    if (!args.chosen_settled) load_first(place);
  }
  if (kPolls || args.x_settled) decode::LoadTiles<kEarly, kRing>(current.unit, ring);

  int unit = begin + warp, slot = args.staged;
  for (int chunk = first_chunk; chunk <= last_chunk; ++chunk, ++slot) {
    if (slot == args.staged) {
      if (chunk != first_chunk) {
        count = min(args.staged, last_chunk - chunk + 1);
        element = MakeSlotElement(args, chunk, count);
        decode::LoadElement<true>(args, element);
        __syncthreads();  // all warps are done with the chunks staged before
        if (args.prologue == Prologue::kRmsNorm) {
          SlotNorms(args, chunk, count, norms);
          __syncthreads();
        }
      }
      if (chunk != first_chunk || !(kPolls || args.x_settled)) {
        decode::QuantizeChunks<kTop256>(args, element, count, stage, counts_of);
        if (chunk == first_chunk) decode::LoadTiles<kEarly, kRing>(current.unit, ring);
      }
      slot = 0;
    }
    const int row = args.by_chunks.Quotient(chunk);
    const int own_chunk = chunk - row * args.dims.chunks;
    for (const int stop = min(end, (chunk + 1) * args.row_blocks); unit < stop; unit += kWarps) {
      Walk next = current;
      next.Step(args, unit + kWarps < end, lane);
      const float next_scale = decode::LoadScale(next.unit);
      int acc[1];
      decode::MultiplyUnit<kTop256>(current.unit, next.unit, stage, slot, ring, acc);
      const int64_t place =
          static_cast<int64_t>(row * args.row_blocks + current.row_block) * args.dims.chunks + own_chunk;
      decode::StoreProduct<1>(args, place * kTileRows + lane,
                              BipolarProduct(acc[0], args.gain, stage.scales[slot], scale));
      current = next;
      scale = next_scale;
    }
  }
  Combine(args, reinterpret_cast<float*>(stage.rows));
}

auto KernelOf(bool top256, bool polls) {
  if (polls) return top256 ? ScExpertLookupKernel<true, true> : ScExpertLookupKernel<false, true>;
  return top256 ? ScExpertLookupKernel<true, false> : ScExpertLookupKernel<false, false>;
}

LookupArgs MakeArgs(const ExpertShape& shape, const ScTables& tables, const RowSource& source,
                    const SiteReporter& reporter, const ScExpertTask* tasks, int count) {
  LookupArgs args;
  const ScWeightView& w = tasks[0].first;
  const ScDims& dims = w.dims;
  args.dims = {static_cast<int>(dims.dims), static_cast<int>(dims.chunk_d), static_cast<int>(dims.chunks),
               static_cast<int>(dims.chunk_stride / kTileDims), static_cast<int>(dims.padded / kTileDims)};
  for (int i = 0; i < count; ++i) {
    args.views[i] = tasks[i].views;
    args.outs[i] = tasks[i].out;
    args.out_strides[i] = tasks[i].out_stride;
  }
  args.row_slots = static_cast<int>(shape.row_slots);
  args.matrices = count;
  args.matrix_rows = static_cast<int>(w.rows);
  args.matrix_blocks = static_cast<int>((w.rows + kTileRows - 1) / kTileRows);
  args.rows_padded = static_cast<int>(w.rows_padded);
  args.row_blocks = args.row_slots * args.matrices * args.matrix_blocks;
  args.by_row_blocks = Divisor(args.row_blocks);
  args.by_chunks = Divisor(args.dims.chunks);
  args.by_matrix_blocks = Divisor(args.matrix_blocks);
  args.by_matrices = Divisor(count);
  args.experts = static_cast<int>(shape.experts);
  args.by_experts = Divisor(args.experts);
  args.counts = tables.counts8;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.q_max = tables.q_max;
  args.gain = tables.gain;
  args.prologue = source.prologue;
  args.x_stride = source.x_stride;
  args.y_stride = source.prologue == Prologue::kSiluMul ? source.x2_stride : 0;
  args.norm_eps = source.norm_eps;
  args.reporter = reporter;
  return args;
}

}  // namespace
}  // namespace experts

void LaunchScExpertLookup(DeviceContext& ctx, const ExpertPlan& plan, const ExpertShape& shape, const ScTables& tables,
                          const RowSource& source, const int32_t* chosen, const SiteReporter& reporter,
                          const ScExpertTask* tasks, int count, const ExpertCombine& combine) {
  STOCH_CHECK(plan.route == LinearRoute::kExpertLookup && count == shape.matrices && count <= kMaxScTasks);
  STOCH_CHECK(combine.top_k == 0 || CanCombine(plan, shape, combine.top_k));
  experts::LookupArgs args = experts::MakeArgs(shape, tables, source, reporter, tasks, count);
  Scratch scratch(ctx.workspace);
  const int64_t row_units = int64_t{args.row_blocks} * args.dims.chunks;
  const int64_t rows_at_once = plan.rows_at_once - (combine.top_k > 0 ? plan.rows_at_once % combine.top_k : 0);
  args.products = scratch.Take<float>(rows_at_once * row_units * kTileRows);
  args.combine = combine;
  args.barrier = ctx.grid_barrier();
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
    // Products are posted word by word, instead of becoming visible at a grid barrier, only if each warp reduces at
    // most one row block: with more, warps that finish multiplying early would poll for long and take memory bandwidth
    // from warps that still multiply.
    const bool posts =
        rows * args.row_blocks <= int64_t{cut.blocks} * experts::kWarps && units * kTileRows <= DeviceContext::kWords;
    args.words = posts ? ctx.words() : nullptr;
    args.x_settled = first == 0 && ctx.IsSettled(source.x);
    args.chosen_settled = first == 0 && ctx.IsSettled(chosen);
    args.staged = cut.staged;
    args.max_tasks = cut.max_tasks;
    args.places = cut.places;
    if (combine.top_k > 0) {
      const int64_t first_row = first / combine.top_k;
      args.combine.weights = combine.weights + first;
      args.combine.out = combine.out + first_row * combine.out_stride;
    }
    args.posted_chosen =
        shape.rows == 1 && args.x_settled ? ctx.row_channel().Poll(chosen, shape.row_slots).words : nullptr;
    RowOutputs outputs;
    if (combine.top_k > 0 && CombinedHandover(plan, shape, combine.top_k) == Handover::kWords) {
      outputs.words = shape.out_features;
      outputs.Add({combine.out, shape.out_features, 0});
    }
    const auto kernel = experts::KernelOf(tables.top_is_256, args.posted_chosen != nullptr);
    AllowShared(ctx, kernel, static_cast<size_t>(cut.shared_bytes));
    ctx.row_channel().Post(outputs, ctx.posts_rows, {}, [&](const RowPost& post, const PostPeers& /*peers*/) {
      args.post = post;
      LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(cut.blocks)), dim3(experts::kThreads),
                       static_cast<size_t>(cut.shared_bytes), args);
    });
  }
  ctx.Settle(chosen);
}

}  // namespace stoch::cuda
