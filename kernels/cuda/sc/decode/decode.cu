// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/decode/args.cuh"
#include "kernels/cuda/sc/decode/combine.cuh"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/cuda/sc/decode/stage.cuh"
#include "kernels/cuda/sc/decode/tile.cuh"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace decode {
namespace {

static_assert(kStageBytes + kChunkDims + 8 == kDecodeStageBytes && kFusedBytes == kDecodeFusedBytes);
static_assert(kChunkDims == kDecodeChunkDims && Cut<1>::kWarps == 16 && Cut<4>::kWarps == 24);

// Iterates over the units of one warp, every kWarps-th of its block. Most steps stay in one chunk and task and only add
// to addresses; to compute addresses from scratch would take a tenth of a unit's instructions.
template <int kWarps>
struct Walk {
  int chunk;      // chunk of the current unit
  int row_block;  // row block of the current unit, among those of all tasks
  Unit unit;      // addresses of the current unit; no tiles: past the block's last unit

  // Starts `ahead` units after the first unit of chunk `first`. exists: whether the block has that unit.
  __device__ __forceinline__ Walk(const DecodeArgs& args, int first, int ahead, bool exists, int lane)
      : chunk(first), row_block(ahead) {
    Locate(args, exists, lane);
  }
  __device__ __forceinline__ void Step(const DecodeArgs& args, bool exists, int lane) {
    row_block += kWarps;
    if (row_block < run_end_) {
      unit.codes += args.dims.row_tiles * (kWarps * kTileBytes);
      unit.scale += kWarps * kTileRows;
      if (!exists) unit.tiles = 0;
      return;
    }
    Locate(args, exists, lane);
  }

 private:
  int run_end_;  // number of the last row block of the current task + 1

  // Computes the addresses of unit (chunk, row_block). A row_block past the chunk's last counts on in the next chunks.
  __device__ __forceinline__ void Locate(const DecodeArgs& args, bool exists, int lane) {
    run_end_ = 0;
    unit = {};
    if (!exists) return;
    for (; row_block >= args.row_blocks; row_block -= args.row_blocks) ++chunk;
    const int t = TaskOf(args, row_block);
    const Task& task = args.tasks[t];
    run_end_ = args.task_end[t];
    const int own = row_block - task.first_block;
    const int tile = own * args.dims.row_tiles + chunk * args.dims.chunk_tiles;
    unit.codes = task.codes + static_cast<int64_t>(tile) * kTileBytes + lane * kTileDims;
    unit.scale = task.scales + chunk * task.rows_padded + own * kTileRows + lane;
    unit.tiles = static_cast<int>(static_cast<unsigned>(args.dims.chunk_dims(chunk) + kTileDims - 1) / kTileDims);
  }
};
// Waits for the previous kernel, then marks the op as begun (SiteReporter). kPosts: lets the next kernel start only
// after the wait, as the row channel requires of a kernel that posts (handover/row_channel.h).
template <bool kPosts>
__device__ __forceinline__ void AwaitPrevious(const SiteReporter& reporter) {
  WaitForPrevious();
  if constexpr (kPosts) StartNext();
  reporter.Begin();
}

template <typename V>
using ArgsOf = std::conditional_t<V::kMixed, MixedDecodeArgs, DecodeArgs>;

// SharedTables returns the block's static shared memory for the count tables of rows with their own stream lengths,
// SharedRules that for the rules which pick these lengths. Null if variant V needs none.
template <typename V>
__device__ __forceinline__ MixedStage<V::kTokens>* SharedTables() {
  if constexpr (V::kMixed) {
    __shared__ MixedStage<V::kTokens> stage;
    return &stage;
  } else {
    return nullptr;
  }
}
template <typename V>
__device__ __forceinline__ RuleStage* SharedRules() {
  if constexpr (V::kMixed && V::kFused) {
    __shared__ RuleStage stage;
    return &stage;
  } else {
    return nullptr;
  }
}

// The number of the part (ChunkOfPart) that unit `unit`, in chunk `chunk`, belongs to; it is `chunk` if all rows have
// one stream length.
template <typename V>
__device__ __forceinline__ int PartOfUnit(const ArgsOf<V>& args, int chunk, int unit) {
  if constexpr (V::kMixed) {
    return chunk * args.part_count + PartOf(args, unit - chunk * args.row_blocks);
  } else {
    return chunk;
  }
}

// Waits for the input and, if the kernel quantizes the row, loads this thread's element and its share of the sum of
// squares; with rules, also finds the row's level numbers. A polled row is awaited word by word, all other input with
// WaitForPrevious.
template <typename V>
__device__ __forceinline__ void ReceiveRow(const ArgsOf<V>& args, const float* row, const Stage& stage,
                                           RuleStage* rules, PostedRow<V::kShares>& posted, Element& element) {
  if constexpr (V::kPolls) {
    posted.Receive(args, element, row, stage);
  } else {
    AwaitPrevious<V::kPosts>(args.reporter);
    if constexpr (V::kFused) {
      LoadElement(args, element);
      if (args.prologue == Prologue::kRmsNorm) NormLanes(row, args.dims.dims, stage.norm_lanes);
    }
  }
  if constexpr (V::kFused && V::kMixed) {
    if (args.of_row) FindRowLevels(args, stage, *rules);
  }
}

// Loads this thread's element of parts `part` to part + count - 1, which are not the first that the block stages.
template <typename V>
__device__ __forceinline__ void LoadLaterElement(const ArgsOf<V>& args, int part, int count,
                                                 PostedRow<V::kShares>& posted, Element& element) {
  element = MakeElement(args, part, count);
  if constexpr (V::kPolls) {
    posted.LoadLater(args, element);
  } else {
    LoadElement(args, element);
  }
}

// Stages the codes and table rows of parts `part` to part + count - 1, by all threads of the block; `chunk` is the
// chunk of the first part. Ends with a barrier.
// Requires: stage.norm_lanes visible to the block; no thread still reads the parts staged before.
template <typename V>
__device__ __forceinline__ void StageParts(const ArgsOf<V>& args, const Element& element, int part, int chunk,
                                           int count, const Stage& stage, MixedStage<V::kTokens>* mixed,
                                           RuleStage* rules) {
  if constexpr (V::kFused && V::kMixed) {
    QuantizeParts<V::kTop256>(args, element, part, count, stage, *mixed, *rules);
  } else if constexpr (V::kFused) {
    QuantizeChunks<V::kTop256>(args, element, count, stage, [&](int, uint32_t) { return CountsOf(args); });
  } else if constexpr (V::kMixed) {
    CopyParts<V::kTokens, V::kTop256>(args, part, count, stage, *mixed);
  } else {
    CopyChunks<V::kTokens, V::kTop256>(args, chunk, count, stage);
  }
}

// Computes an SC linear of up to V::kTokens tokens. A persistent kernel of at most one block per SM; a unit is one
// chunk of 32 weight rows, a warp's work at a time. Units are numbered chunk by chunk, and each block takes a
// contiguous range. A block stages the range's chunks one or two at a time, its warps multiply units and store their
// products (split-K partials), and in the end all blocks sum products to outputs (combine.cuh). If rows have their own
// stream lengths, the block stages parts (MixedDecodeArgs) instead of whole chunks.
template <typename V>
__global__ void __launch_bounds__(Cut<V::kTokens>::kThreads, 1) ScDecodeKernel(const __grid_constant__ ArgsOf<V> args) {
  constexpr int kTokens = V::kTokens;
  constexpr bool kMixed = V::kMixed;
  constexpr bool kFused = V::kFused;
  constexpr bool kPolls = V::kPolls;
  constexpr bool kPosts = V::kPosts;
  constexpr bool kShares = V::kShares;
  constexpr int kWarps = Cut<kTokens>::kWarps;
  constexpr int kRing = Cut<kTokens>::kRing;
  extern __shared__ __align__(256) uint8_t shared[];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  // Broadcast from one lane, so that the compiler knows `warp` to be uniform and keeps addresses in uniform registers.
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kWarp), 0);
  const int block = static_cast<int>(blockIdx.x);
  const int begin = block * args.units_each + min(block, args.units_rest);
  const int end = begin + args.units_each + (block < args.units_rest ? 1 : 0);
  const int first_chunk = args.by_row_blocks.Quotient(begin);
  const int last_chunk = args.by_row_blocks.Quotient(end - 1);
  const Stage stage = MakeStage<kTokens, kFused>(shared, args.staged);
  MixedStage<kTokens>* const mixed = SharedTables<V>();
  RuleStage* const rules = SharedRules<V>();
  const int first_part = PartOfUnit<V>(args, first_chunk, begin);
  const int last_part = PartOfUnit<V>(args, last_chunk, end - 1);

  if constexpr (!kPosts) StartNext();
  Element element;
  if constexpr (kFused) element = MakeElement(args, first_part, min(args.staged, last_part - first_part + 1));
  uint4 ring[kRing];
  Walk<kWarps> current(args, first_chunk, begin - first_chunk * args.row_blocks + warp, begin + warp < end, lane);
  PostedRow<kShares> posted;
  if constexpr (kPolls) posted.Look(args, element);
  // Weights depend on no earlier kernel, so the first kEarly tiles are loaded before the activations. The other tiles
  // of the ring are loaded after the activations, because loads return in order and all warps wait for the activations.
  // Alternatives that lost: docs/tuning/decode.md. The branch in LoadTiles also keeps the compiler from moving its
  // loads past the wait.
  LoadTiles<0, Cut<kTokens>::kEarly>(current.unit, ring);
  float scale = LoadScale(current.unit);
  const float* row = args.x;
  MakeHere(row);
  WarmPeers<kShares>(args);
  if constexpr (kMixed) LoadTables(args, *mixed);
  if constexpr (kMixed && kFused) {
    LoadRules(args, *rules);
    if (args.of_row) KeepNorm(args, stage);
  }
  ReceiveRow<V>(args, row, stage, rules, posted, element);

  int unit = begin + warp;
  int slot = args.staged;
  // All threads of the block run this loop over parts alike, so that the compiler keeps a part's addresses in uniform
  // registers.
  for (int part = first_part; part <= last_part; ++part, ++slot) {
    int chunk = part;
    if constexpr (kMixed) chunk = part / args.part_count;
    if (slot == args.staged) {
      const int count = min(args.staged, last_part - part + 1);
      // In the first stage the barrier makes norm_lanes, or tables and rules, visible. Later it waits until all warps
      // are done with the parts staged before.
      if (part != first_part || (kFused && (kMixed || args.prologue == Prologue::kRmsNorm))) __syncthreads();
      if constexpr (kFused) {
        if (part != first_part) LoadLaterElement<V>(args, part, count, posted, element);
      }
      StageParts<V>(args, element, part, chunk, count, stage, mixed, rules);
      if (part == first_part) {
#pragma unroll
        for (int t = Cut<kTokens>::kEarly; t < kRing; ++t) ring[t] = LoadTile(current.unit, t);
        if constexpr (kPolls) AwaitPrevious<kPosts>(args.reporter);
        if constexpr (kPosts) ClearRow(args.post, block, static_cast<int>(gridDim.x));
      }
      slot = 0;
    }
    int stop = min(end, (chunk + 1) * args.row_blocks);
    if constexpr (kMixed) stop = min(end, chunk * args.row_blocks + args.part_end[part % args.part_count]);
    for (; unit < stop; unit += kWarps) {
      Walk<kWarps> next = current;
      next.Step(args, unit + kWarps < end, lane);
      // Loaded a unit ahead: at the end of a unit, where the scale is needed, nothing is left to hide its latency.
      const float next_scale = LoadScale(next.unit);
      int acc[kTokens];
      MultiplyUnit<V::kTop256>(current.unit, next.unit, stage, slot, ring, acc);
      const int row_block = current.row_block;
      current = next;
#pragma unroll
      for (int n = 0; n < kTokens; ++n) {
        if (kTokens > 1 && n >= args.tokens) break;
        const int place = (n * args.row_blocks + row_block) * args.dims.chunks + chunk;
        float gain = args.gain;
        if constexpr (kMixed) gain = mixed->gains[slot * kTokens + n];
        StoreProduct<kTokens>(args, static_cast<int64_t>(place) * kTileRows + lane,
                              BipolarProduct(acc[n], gain, stage.scales[slot * kTokens + n], scale));
      }
      scale = next_scale;
    }
  }
  Combine<kTokens, kPosts, kShares>(args, shared);
}

// The kernel variant that posts its outputs to the next kernel.
template <bool kTop256, OutputKind kOutput>
auto PostingKernelOf(bool polls) {
  return polls ? ScDecodeKernel<Variant<1, InputKind::kPolled, kOutput, kTop256>>
               : ScDecodeKernel<Variant<1, InputKind::kFloats, kOutput, kTop256>>;
}

template <int kTokens, bool kMixed, bool kTop256>
auto KernelOf(bool fused, const DecodeArgs& args) {
  if constexpr (kTokens == 1 && !kMixed) {
    const bool shares = args.post.num_peers > 0 || args.wait.failed != nullptr;
    if (args.post) {
      return shares ? PostingKernelOf<kTop256, OutputKind::kShared>(args.polls)
                    : PostingKernelOf<kTop256, OutputKind::kPosted>(args.polls);
    }
  }
  if constexpr (kTokens == 1) {
    if (fused) return ScDecodeKernel<Variant<1, InputKind::kFloats, OutputKind::kMemory, kTop256, kMixed>>;
  }
  return ScDecodeKernel<Variant<kTokens, InputKind::kCodes, OutputKind::kMemory, kTop256, kMixed>>;
}

template <int kTokens, typename Args>
void LaunchTokens(DeviceContext& ctx, const LinearPlan& plan, Args& args, bool fused, bool top256) {
  constexpr bool kMixed = std::is_same_v<Args, MixedDecodeArgs>;
  const int blocks = plan.blocks;
  const int64_t units = int64_t{args.dims.chunks} * args.row_blocks;
  STOCH_CHECK(units * kTileRows <= INT32_MAX);  // the kernel counts units, tiles and scales in 32 bits
  args.units_each = static_cast<int>(units / blocks);
  args.units_rest = static_cast<int>(units % blocks);
  args.by_row_blocks = Divisor(args.row_blocks);
  args.staged = plan.staged;
  const int shared_bytes = StageBytes<kTokens>(fused, args.staged);
  STOCH_CHECK(shared_bytes == plan.shared_bytes && args.staged <= kMaxFusedChunks);
  static_assert(!kMixed ||
                sizeof(MixedStage<kTokens>) + (kTokens == 1 ? sizeof(RuleStage) : 0) <= kDecodeMixedStaticBytes);
  const auto kernel =
      top256 ? KernelOf<kTokens, kMixed, true>(fused, args) : KernelOf<kTokens, kMixed, false>(fused, args);
  AllowShared(ctx, kernel, static_cast<size_t>(shared_bytes));
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(blocks)), dim3(Cut<kTokens>::kThreads),
                   static_cast<size_t>(shared_bytes), args);
}

// Sets the arguments that do not depend on stream lengths, except the memory of the split-K partials.
void FillArgs(DeviceContext& ctx, const ScActivationView& a, const SiteReporter& reporter, const ScLinearTask* tasks,
              int count, DecodeArgs& args) {
  for (int i = 0; i < count; ++i) {
    const ScWeightView& w = tasks[i].weight;
    STOCH_CHECK(tasks[i].out.add == tasks[0].out.add);
    args.tasks[i] = {w.codes,
                     w.scales,
                     static_cast<int>(w.rows_padded),
                     args.row_blocks,
                     static_cast<int>(w.rows),
                     tasks[i].out.data,
                     tasks[i].out.stride};
    args.row_blocks += static_cast<int>((w.rows + kTileRows - 1) / kTileRows);
    args.task_end[i] = args.row_blocks;
  }
  for (int i = count; i < kMaxDecodeTasks; ++i) args.task_end[i] = INT32_MAX;
  const ScDims& dims = tasks[0].weight.dims;
  args.dims = {static_cast<int>(dims.dims), static_cast<int>(dims.chunk_d), static_cast<int>(dims.chunks),
               static_cast<int>(dims.chunk_stride / kTileDims), static_cast<int>(dims.padded / kTileDims)};
  args.tokens = a.codes == nullptr ? 1 : static_cast<int>(a.tokens);
  args.add = tasks[0].out.add;
  args.codes = a.codes;
  args.scales = a.scales;
  args.reporter = reporter;
  args.barrier = ctx.grid_barrier();
}

// Describes the outputs of a one-token launch to the row channel, so that the kernel can post them for the next call.
RowOutputs OutputsOf(const DecodeArgs& args, int count) {
  RowOutputs outputs;
  outputs.words = int64_t{args.row_blocks} * kTileRows;
  outputs.can_share = true;
  for (int i = 0; i < count; ++i) {
    const Task& task = args.tasks[i];
    outputs.Add({task.out, task.rows, int64_t{task.first_block} * kTileRows});
  }
  return outputs;
}

// The input row as words to poll, if the previous call posts it.
struct PolledOperands {
  PolledRow x;               // null words: x cannot be polled
  const float* y = nullptr;  // norm weight, or x2 as words to poll
  Prologue prologue = Prologue::kNone;
};
// Looks for args.x, and for x2 of a SiLU product, among the rows that the previous call posts. In the result x.words is
// null if one of them is not posted.
PolledOperands Poll(const RowChannel& rows, const DecodeArgs& args) {
  PolledOperands polled{rows.Poll(args.x, args.dims.dims), args.y, args.prologue};
  const bool is_product = args.prologue == Prologue::kSiluMul;
  if (polled.x.silu_by != nullptr) {
    polled.prologue = Prologue::kSiluMul;
    polled.y = reinterpret_cast<const float*>(polled.x.silu_by);
    if (args.prologue != Prologue::kNone) polled.x = {};
  } else if (is_product) {
    const PolledRow y = polled.x.is_shared_row ? PolledRow{} : rows.Poll(args.y, args.dims.dims);
    polled.y = reinterpret_cast<const float*>(y.words);
    if (!y || y.is_shared_row) polled.x = {};
  }
  return polled;
}

template <typename Args>
void LaunchFilled(DeviceContext& ctx, const LinearPlan& plan, Args& args, bool fused, bool top256, int count) {
  Scratch scratch(ctx.workspace);
  const int64_t products = int64_t{args.tokens} * args.dims.chunks * args.row_blocks * kTileRows;
  if (plan.tile_tokens == 1 && products <= DeviceContext::kWords) {
    args.words = ctx.words();
  } else {
    args.products = scratch.Take<float>(products);
  }
  const auto launch = plan.tile_tokens == 1   ? LaunchTokens<1, Args>
                      : plan.tile_tokens == 2 ? LaunchTokens<2, Args>
                      : plan.tile_tokens == 4 ? LaunchTokens<4, Args>
                                              : LaunchTokens<8, Args>;
  if constexpr (std::is_same_v<Args, DecodeArgs>) {
    const bool posts = plan.handover == Handover::kWords;
    const PolledOperands polled = posts ? Poll(ctx.row_channel(), args) : PolledOperands{};
    ctx.row_channel().Post(posts ? OutputsOf(args, count) : RowOutputs{}, ctx.posts_rows, polled.x,
                           [&](const RowPost& post, const PostPeers& peers) {
                             args.post = post;
                             args.peers = peers;
                             args.polls = post && polled.x;
                             if (args.polls) {
                               args.x = reinterpret_cast<const float*>(polled.x.words);
                               args.y = polled.y;
                               args.prologue = polled.prologue;
                               args.wait = polled.x.wait;
                             }
                             launch(ctx, plan, args, fused, top256);
                           });
  } else {
    ctx.row_channel().Settle();
    launch(ctx, plan, args, fused, top256);
  }
}

}  // namespace
}  // namespace decode

namespace {

// LaunchScDecode for more tokens than a block can stage in shared memory: one launch for every plan.tile_tokens tokens.
void LaunchInParts(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                   const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count) {
  STOCH_CHECK(count <= kMaxDecodeTasks);
  for (int64_t first = 0; first < a.tokens; first += plan.tile_tokens) {
    Scratch scratch(ctx.workspace);
    ScActivationView part = a;
    part.tokens = std::min<int64_t>(plan.tile_tokens, a.tokens - first);
    part.codes += first * a.dims.padded;
    // a.scales is [chunks][a.tokens]; the kernel takes [chunks][part.tokens].
    auto* scales = scratch.Take<float>(part.tokens * a.dims.chunks);
    const auto width = static_cast<size_t>(part.tokens) * sizeof(float);
    STOCH_CUDA(cudaMemcpy2DAsync(scales, width, a.scales + first, static_cast<size_t>(a.tokens) * sizeof(float), width,
                                 static_cast<size_t>(a.dims.chunks), cudaMemcpyDeviceToDevice, ctx.stream));
    part.scales = scales;
    std::array<ScLinearTask, kMaxDecodeTasks> moved;
    std::copy_n(tasks, count, moved.begin());
    for (ScLinearTask& task : moved) task.out.data += first * task.out.stride;
    LaunchScDecode(ctx, plan, tables, part, source, reporter, moved.data(), count);
  }
}

}  // namespace

void LaunchScDecode(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                    const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count) {
  if (a.tokens > plan.tile_tokens) return LaunchInParts(ctx, plan, tables, a, source, reporter, tasks, count);
  decode::DecodeArgs args;
  decode::FillArgs(ctx, a, reporter, tasks, count, args);
  args.counts = tables.counts8;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.q_max = tables.q_max;
  args.gain = tables.gain;
  args.prologue = source.prologue;
  args.x = source.x;
  args.y = source.second();
  args.norm_eps = source.norm_eps;
  decode::LaunchFilled(ctx, plan, args, a.codes == nullptr, tables.top_is_256, count);
}

void LaunchScDecodeMixed(DeviceContext& ctx, const LinearPlan& plan, const ScActivationView& a, const RowSource& source,
                         const SiteReporter& reporter, const ScLinearTask* tasks, const ScTaskLengths* lengths,
                         int count, bool share_lengths) {
  STOCH_CHECK(count <= kMaxDecodeTasks && a.tokens <= plan.tile_tokens);
  decode::MixedDecodeArgs args;
  decode::FillArgs(ctx, a, reporter, tasks, count, args);
  args.part_count = share_lengths ? 1 : count;
  std::copy_n(args.task_end, kMaxDecodeTasks, args.part_end);
  if (share_lengths) args.part_end[0] = args.row_blocks;
  const bool fused = a.codes == nullptr;
  bool top256 = false;
  for (int i = 0; i < args.part_count; ++i) {
    const LengthView& view = *lengths[i].view;
    STOCH_CHECK(view.bytes != nullptr && view.levels == lengths[0].view->levels);
    args.lengths[i] = {view.bytes, view.slots, static_cast<int>(lengths[i].slots.per_row), lengths[i].slots.slots};
    top256 = top256 || view.any_top_is_256;
    if (!fused) continue;
    STOCH_CHECK(!view.has_rule || PicksSlots(view));
    args.rules[i] = view;
    const bool of_row = view.has_rule && view.scope == ScLengthScope::kRow;
    args.of_row = args.of_row || of_row;
    args.needs_l2 = args.needs_l2 || (of_row && view.metric != ScMetric::kAmax);
  }
  args.levels = lengths[0].view->levels;
  args.q_max = lengths[0].view->q_max;
  args.prologue = source.prologue;
  args.x = source.x;
  args.y = source.second();
  args.norm_eps = source.norm_eps;
  decode::LaunchFilled(ctx, plan, args, fused, top256, count);
}

bool PicksSlots(const LengthView& view) {
  return view.alone() && view.num_slot_of <= kMaxRuleSlots && view.num_thresholds <= kMaxByteTables;
}

}  // namespace stoch::cuda
