// SPDX-License-Identifier: Apache-2.0
// The second half of a small-batch kernel: integer split-K partials, which many blocks wrote, become outputs.
//
// Blocks split the dimensions of a linear by chunks and store a partial sum for every (chunk, row, token), in the
// layout of their mma accumulators. After a grid barrier they scale the partials and add them in chunk order.
#pragma once

#include <climits>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {

inline constexpr int kGroupRows = 16;  // weight rows of an mma
inline constexpr int kTileTokens = 8;  // tokens of an mma

// An even split of `count` work items over the grid. Computed on the host: an integer division on the device costs
// about 30 instructions.
struct BlockShare {
  uint32_t each = 0;
  uint32_t more = 0;  // blocks that get one more

  static BlockShare Of(int64_t count, int64_t blocks) {
    STOCH_CHECK(count <= INT32_MAX);
    return {static_cast<uint32_t>(count / blocks), static_cast<uint32_t>(count % blocks)};
  }
#if defined(__CUDACC__)
  __device__ __forceinline__ int first() const { return static_cast<int>(blockIdx.x * each + min(blockIdx.x, more)); }
  __device__ __forceinline__ int end() const { return first() + static_cast<int>(each + (blockIdx.x < more ? 1 : 0)); }
#endif
};

struct BatchOutputs {
  ScKernelTask tasks[kMaxScTasks];
  int task_count = 0;
  ScDims dims;
  int groups = 0;  // of all tasks, each padded to what a kernel works on at a time
  int tiles = 0;   // of 8 tokens
  float gain = 0;
  ScActivationView a;
  const float* gains = nullptr;  // mixed lengths: [chunks][scale_stride], as a.scales then
  int scale_stride = 0;
  SiteReporter reporter;
  // At most 4 tokens: an item is two groups, and lanes of tokens 4..7 hold the second group's partials of tokens 0..3.
  bool four_tokens = false;
  // [chunks][parts][items][lane][4] with items [groups][tiles], or [groups / 2] if four_tokens: rows lane / 4 and
  // 8 + lane / 4, of each tokens 2 * (lane % 4) and the next. int16 if every partial fits: the reduction is bound by L2
  // bandwidth, so half the bytes are half the time.
  void* partials = nullptr;
  bool wide = false;  // int32
  int parts = 1;      // of a chunk, 1 or 2, with partials of their own

  BlockShare reduced;  // a block's range of reduce_units()

  // Tiles that have outputs: fewer than `tiles` where those are padded to what a kernel works on at a time.
  STOCH_LAYOUT_FN int used_tiles() const { return (static_cast<int>(a.tokens) + kTileTokens - 1) / kTileTokens; }
  STOCH_LAYOUT_FN int reduce_units() const { return four_tokens ? groups : groups * used_tiles() * 2; }
  STOCH_LAYOUT_FN int items() const { return four_tokens ? groups / 2 : groups * tiles; }

  int64_t partial_bytes() const {
    return dims.chunks * parts * items() * kGroupRows * kTileTokens *
           static_cast<int64_t>(wide ? sizeof(int32_t) : sizeof(int16_t));
  }
};

inline bool PartialsAreWide(int max_count, const ScDims& dims) { return int64_t{max_count} * dims.chunk_d > INT16_MAX; }

// The tasks and shape of a call, each task padded to a multiple of `rows_at_once`, itself one of 16. The caller sets
// `partials`.
inline BatchOutputs MakeBatchOutputs(const ScTables& tables, const ScActivationView& a, const SiteReporter& reporter,
                                     const ScLinearTask* tasks, int count, int rows_at_once, int tiles) {
  BatchOutputs r;
  r.task_count = count;
  r.dims = tasks[0].weight.dims;
  r.tiles = tiles;
  r.gain = tables.gain;
  r.a = a;
  r.scale_stride = static_cast<int>(a.tokens);
  r.reporter = reporter;
  r.wide = PartialsAreWide(tables.max_count, r.dims);
  for (int i = 0; i < count; ++i) {
    const ScWeightView& w = tasks[i].weight;
    STOCH_CHECK(r.dims.chunks * w.rows_padded <= INT32_MAX);
    r.tasks[i] = MakeKernelTask(tasks[i], r.groups);
    r.groups += static_cast<int>((w.rows + rows_at_once - 1) / rows_at_once) * (rows_at_once / kGroupRows);
  }
  return r;
}

#if defined(__CUDACC__)

__device__ __forceinline__ const ScKernelTask& BatchTaskOf(const BatchOutputs& args, int group) {
  int t = 0;
  while (t + 1 < args.task_count && group >= args.tasks[t + 1].first_block) ++t;
  return args.tasks[t];
}

__device__ __forceinline__ uint2 PackPartials(int32_t s0, int32_t s1, int32_t s2, int32_t s3) {
  return make_uint2(__byte_perm(static_cast<uint32_t>(s0), static_cast<uint32_t>(s1), 0x5410),
                    __byte_perm(static_cast<uint32_t>(s2), static_cast<uint32_t>(s3), 0x5410));
}

// A lane's four sums of an item.
__device__ __forceinline__ void StorePartials(const BatchOutputs& args, int64_t chunk, int item, int lane, int32_t s0,
                                              int32_t s1, int32_t s2, int32_t s3) {
  const int64_t at = (chunk * args.items() + item) * kWarp + lane;
  if (args.wide) {
    reinterpret_cast<int4*>(args.partials)[at] = make_int4(s0, s1, s2, s3);
  } else {
    reinterpret_cast<uint2*>(args.partials)[at] = PackPartials(s0, s1, s2, s3);
  }
}

__device__ __forceinline__ int4 LoadPartials(const BatchOutputs& args, int64_t at) {
  if (args.wide) return __ldcg(reinterpret_cast<const int4*>(args.partials) + at);
  const uint2 s = __ldcg(reinterpret_cast<const uint2*>(args.partials) + at);
  return make_int4(static_cast<int16_t>(s.x & 0xffff), static_cast<int16_t>(s.x >> 16),
                   static_cast<int16_t>(s.y & 0xffff), static_cast<int16_t>(s.y >> 16));
}

// Where a lane's four outputs of an item are: rows row and row + 8 of tokens token and token + 1.
struct BatchItem {
  const ScKernelTask* task;
  int row;
  int token;
};

__device__ __forceinline__ void StoreOutputs(const BatchOutputs& args, const BatchItem& item, const float4& y) {
  const float values[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = item.row + i / 2 * 8;
    const int token = item.token + i % 2;
    if (row >= item.task->rows || token >= args.a.tokens) continue;
    float* to = item.task->out + token * item.task->out_stride + row;
    const float value = item.task->add ? *to + values[i] : values[i];
    if (!IsFinite(value)) args.reporter.Report();
    *to = value;
  }
}

// The shared-memory stages of ReduceChunks, the split-K reduction. A unit is half an mma tile, rows 4 * (unit % 2) and
// the next three and the same 8 rows further on, times 8 tokens: 32 words of two partials each, one a lane, contiguous
// in every chunk. (If four_tokens: 16 rows of two groups times 4 tokens.) One warp reduces a unit over all chunks
// through a private cp.async ring of partials and both scales, so no block barrier is needed.
//
// Bound by L2 bandwidth, so loads have to be in flight on every SM at all times: sizing in
// docs/tuning/batch.md#2-to-16-tokens. The ring transposes scales so that those of four chunks
// are contiguous: two copies and three loads for four chunks; a lane's own loads would take as long as the partials.
//
// kAtOnce: quads that are unrolled. If a warp has few units, instruction fetch is what an unrolled body costs (8B,
// 8 tokens: 2 % of a step).
// kMixed: every (chunk, token) has a gain of its own.
template <bool kWide_, bool kFourTokens_, int kParts_, int kAtOnce_, int kTiles_, bool kMixed_ = false>
struct ReduceStage {
  static constexpr bool kMixed = kMixed_;
  static constexpr bool kWide = kWide_;
  static constexpr bool kFourTokens = kFourTokens_;
  static constexpr int kParts = kParts_;
  static constexpr int kAtOnce = kAtOnce_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kQuad = 4;   // chunks that a copy of a lane, or a vector of scales, spans
  static constexpr int kQuads = 2;  // of a stage
  static constexpr int kChunks = kQuad * kQuads;
  static constexpr int kWordBytes = kWide ? 8 : 4;  // two sums: tokens 2n and 2n + 1
  static constexpr int kUnitBytes = kWarp * kWordBytes;
  static constexpr int kLines = 8;  // that a copy of all lanes spans
  static constexpr int kRows = kFourTokens ? 16 : 8;
  static constexpr int kTokens = kFourTokens ? 4 : kTileTokens;
  // Contents of a quad: sums [4][kParts][32 words], weight scales [kRows][4], activation scales [kTokens][4], their gains.
  static constexpr int kPartialBytes = kQuad * kParts * kUnitBytes;
  static constexpr int kLineBytes = kQuad * static_cast<int>(sizeof(float));
  static constexpr int kQuadBytes = kPartialBytes + (kRows + kTokens * (kMixed ? 2 : 1)) * kLineBytes;
  static constexpr int kBytes = kQuads * kQuadBytes;
};

// kTiles: args.used_tiles() if it is known at compile time, else 0; a division would take longer than most of a unit.
template <int kTiles>
struct ReduceUnit {
  const ScKernelTask* task;
  int word;   // of its first sums in a chunk, in units
  int row;    // the first
  int token;  // the first
  __device__ ReduceUnit(const BatchOutputs& args, int unit) {
    const int tiles = kTiles > 0 ? kTiles : args.used_tiles();
    const int group = args.four_tokens ? unit / 2 * 2 : unit / 2 / tiles;
    const int tile = args.four_tokens ? 0 : unit / 2 % tiles;
    task = &BatchTaskOf(args, group);
    word = (args.four_tokens ? unit / 2 : group * args.tiles + tile) * 2 + unit % 2;
    row = (group - task->first_block) * kGroupRows + unit % 2 * 4;
    token = tile * kTileTokens;
  }
};

// Issues the copies of a warp's units, stage by stage.
template <typename S>
struct UnitCopier {
  const BatchOutputs& args;
  int unit;  // the next stage's
  int end;
  int step;
  int begin = 0;  // the next stage's first chunk
  // Sources of this lane's copies of chunk begin + lane / 8: a vector of partials, a token's scale, a row's scale.
  const uint8_t* partials = nullptr;
  const float* scale_a = nullptr;
  const float* scale_b = nullptr;
  uint32_t rows_padded = 0;
  __device__ UnitCopier(const BatchOutputs& outputs, int first, int units_end, int unit_step)
      : args(outputs), unit(first), end(units_end), step(unit_step) {
    Start();
  }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ uint32_t part_bytes() const { return static_cast<uint32_t>(args.items()) * 2 * S::kUnitBytes; }
  __device__ int scale_stride() const { return S::kMixed ? args.scale_stride : static_cast<int>(args.a.tokens); }
  __device__ uint32_t chunk_bytes() const { return part_bytes() * static_cast<uint32_t>(args.parts); }

  __device__ void Start() {
    const ReduceUnit<S::kTiles> at(args, unit);
    const auto chunk = static_cast<uint32_t>(lane() / S::kLines);
    const int line = lane() % S::kLines;
    // Padding rows and tokens take any scale: their outputs are not stored.
    const int token = min(at.token + line, static_cast<int>(args.a.tokens) - 1);
    const int row = min(at.row + line % 4 + line / 4 * 8, at.task->rows_padded - 1 - (S::kFourTokens ? kGroupRows : 0));
    rows_padded = static_cast<uint32_t>(at.task->rows_padded);
    partials = static_cast<const uint8_t*>(args.partials) + uint64_t{chunk} * chunk_bytes() +
               static_cast<uint32_t>(at.word * S::kUnitBytes + line * (S::kUnitBytes / S::kLines));
    scale_a = args.a.scales + static_cast<uint32_t>(static_cast<int>(chunk) * scale_stride() + token);
    scale_b = at.task->scales + (chunk * rows_padded + static_cast<uint32_t>(row));
  }

  // Issues one stage, or nothing, as a group of copies.
  __device__ void Issue(uint32_t stage) {
    if (unit < end) {
      const int chunks = static_cast<int>(args.dims.chunks);
      const int line = lane() % S::kLines;
#pragma unroll S::kAtOnce
      for (int q = 0; q < S::kQuads; ++q) {
        const int chunk = lane() / S::kLines;
        const uint32_t quad = stage + q * S::kQuadBytes;
        const uint32_t to = quad + chunk * S::kParts * S::kUnitBytes + line * (S::kUnitBytes / S::kLines);
        const uint32_t scale_to =
            quad + S::kPartialBytes + line * S::kLineBytes + chunk * static_cast<int>(sizeof(float));
        // Chunks beyond the last are products of +0, which change nothing: y is never -0.
        const bool have = begin + q * S::kQuad + chunk < chunks;
#pragma unroll
        for (int i = 0; i < S::kUnitBytes / S::kLines; i += 16) {
          CopyAsync16(to + i, partials + i, have);
          if constexpr (S::kParts == 2)
            CopyAsync16(to + S::kUnitBytes + i, partials + part_bytes() + i, have && args.parts == 2);
        }
        // Through L1, as other warps of the block read the same scales. It holds nothing stale: waiting for the kernel's
        // barrier has invalidated it.
        CopyAsync4(scale_to, scale_b, have);
        if constexpr (S::kFourTokens) CopyAsync4(scale_to + S::kLines * S::kLineBytes, scale_b + kGroupRows, have);
        if (line < S::kTokens) {
          CopyAsync4(scale_to + S::kRows * S::kLineBytes, scale_a, have);
          if constexpr (S::kMixed) {
            CopyAsync4(scale_to + (S::kRows + S::kTokens) * S::kLineBytes, args.gains + (scale_a - args.a.scales),
                       have);
          }
        }
        partials += S::kQuad * chunk_bytes();
        scale_a += S::kQuad * static_cast<uint32_t>(scale_stride());
        scale_b += S::kQuad * rows_padded;
      }
      begin += S::kChunks;
      if (begin >= chunks) {
        begin = 0;
        unit += step;
        if (unit < end) Start();
      }
    }
    CommitCopies();
  }
};

// A word: the partials of two tokens.
__device__ __forceinline__ int2 WordPartials(uint32_t word) {
  return make_int2(static_cast<int16_t>(word & 0xffff), static_cast<int32_t>(word) >> 16);
}
__device__ __forceinline__ int2 WordPartials(const int2& word) { return word; }

// y += the products of the four chunks of a quad, in order. `word`: of this lane's partials in the unit.
template <typename S>
__device__ __forceinline__ void AddQuad(const uint8_t* quad, int word, int line, int token, float gain, float2& y) {
  using Word = std::conditional_t<S::kWide, int2, uint32_t>;
  const auto* words = reinterpret_cast<const Word*>(quad) + word;
  const auto* scales = reinterpret_cast<const float4*>(quad + S::kPartialBytes);
  const float4 scale_b = scales[line];
  const float4 scale_a[2] = {scales[S::kRows + token], scales[S::kRows + token + 1]};
  const float b[4] = {scale_b.x, scale_b.y, scale_b.z, scale_b.w};
  const float a0[4] = {scale_a[0].x, scale_a[0].y, scale_a[0].z, scale_a[0].w};
  const float a1[4] = {scale_a[1].x, scale_a[1].y, scale_a[1].z, scale_a[1].w};
  float g0[4] = {gain, gain, gain, gain};
  float g1[4] = {gain, gain, gain, gain};
  if constexpr (S::kMixed) {
    const float4* gains = scales + S::kRows + S::kTokens + token;
    g0[0] = gains[0].x, g0[1] = gains[0].y, g0[2] = gains[0].z, g0[3] = gains[0].w;
    g1[0] = gains[1].x, g1[1] = gains[1].y, g1[2] = gains[1].z, g1[3] = gains[1].w;
  }
#pragma unroll
  for (int c = 0; c < S::kQuad; ++c) {
    int2 s = WordPartials(words[c * S::kParts * kWarp]);
    if constexpr (S::kParts == 2) {
      const int2 more = WordPartials(words[(c * S::kParts + 1) * kWarp]);
      s = make_int2(s.x + more.x, s.y + more.y);
    }
    y.x = y.x + BipolarProduct(s.x, g0[c], a0[c], b[c]);
    y.y = y.y + BipolarProduct(s.y, g1[c], a1[c], b[c]);
  }
}

// Split-K reduction of all outputs by warps 0..kWarps-1 of every block. await() returns once all partials are visible.
// Requires: args.reduced is of args.reduce_units(); `shared` has kBytes, aligned to 16, that no warp uses any more; the
//           ReduceStage S matches args: wide, four_tokens, tiles, and at least as many parts.
//
// A warp's ring is kBytes / kWarps of `shared`, or twice that if half of the warps have all units.
template <typename S, int kWarps, int kBytes, typename Await>
__device__ __forceinline__ void ReduceChunks(const BatchOutputs& args, uint8_t* shared, const Await& await) {
  constexpr int kStages = kBytes / kWarps / S::kBytes;
  static_assert(kStages >= 2);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int chunks = static_cast<int>(args.dims.chunks);
  // Neighbours share scales, so a block takes a range.
  const int first = args.reduced.first();
  const int end = args.reduced.end();
  const bool deep = end - first <= kWarps / 2;
  const int stages = deep ? 2 * kStages : kStages;
  uint8_t* const ring = shared + warp * stages * S::kBytes;
  const auto ring_at = SharedAddress(ring);
  const int ring_bytes = stages * S::kBytes;

  // Also if a warp has no unit: it computes addresses only, and await() has barriers of the whole block.
  UnitCopier<S> copier(args, first + warp, end, kWarps);
  await();
  int fill = 0;         // offset of the stage to be issued next
  int take = 0;         // offset of the stage to be added next
  bool filled = false;  // all stages but one are in flight
  const auto next = [&](int at) { return at + S::kBytes == ring_bytes ? 0 : at + S::kBytes; };
  // This lane's row and its first token, of the unit's.
  const int line = lane / 8 + lane % 2 * 4 + (S::kFourTokens ? lane / 4 % 2 * 8 : 0);
  const int token = lane / 2 % (S::kFourTokens ? 2 : 4) * 2;
  for (int u = first + warp; u < end; u += kWarps) {
    const ReduceUnit<S::kTiles> unit(args, u);
    const int row = unit.row + line % 4 + line / 4 * 8;  // if four_tokens, line / 8 is a group of 16 rows
    float* const out = unit.task->out + (unit.token + token) * unit.task->out_stride + row;
    const int64_t stride = unit.task->out_stride;
    const bool store = row < unit.task->rows && unit.token + token < args.a.tokens;
    const bool store_next = store && unit.token + token + 1 < args.a.tokens;
    const bool add = unit.task->add;
    // Loaded now: at the end nothing would be left to hide the latency.
    const float old[2] = {add && store ? out[0] : 0.0f, add && store_next ? out[stride] : 0.0f};
    float2 y = make_float2(0.0f, 0.0f);
    for (int begin = 0; begin < chunks; begin += S::kChunks) {
      // The first stages are issued here too, so that there is one copy of Issue in the code.
#pragma unroll 1
      for (;; fill = next(fill)) {
        const bool last = filled;
        if (last) {
          if (deep) {
            WaitForCopies<2 * kStages - 2>();
          } else {
            WaitForCopies<kStages - 2>();
          }
          __syncwarp();  // all lanes' copies are here, and all lanes are done with the stage to be filled
        }
        copier.Issue(ring_at + fill);
        filled = filled || fill + 2 * S::kBytes == ring_bytes;
        if (last) break;
      }
      fill = next(fill);
#pragma unroll S::kAtOnce
      for (int q = 0; q < S::kQuads && begin + q * S::kQuad < chunks; ++q) {
        AddQuad<S>(ring + take + q * S::kQuadBytes, lane, line, token, args.gain, y);
      }
      take = next(take);
    }
    const auto put = [&](float* to, float value) {
      if (!IsFinite(value)) args.reporter.Report();
      *to = value;
    };
    if (store) put(out, add ? old[0] + y.x : y.x);
    if (store_next) put(out + stride, add ? old[1] + y.y : y.y);
  }
}

// ReduceChunks for more than four tokens and one part, wide or not.
template <int kWarps, int kBytes, typename Await>
__device__ void ReduceManyTokens(const BatchOutputs& args, uint8_t* shared, const Await& await) {
  if (args.wide) {
    ReduceChunks<ReduceStage<true, false, 1, 2, 0>, kWarps, kBytes>(args, shared, await);
  } else {
    ReduceChunks<ReduceStage<false, false, 1, 2, 0>, kWarps, kBytes>(args, shared, await);
  }
}

#endif

}  // namespace stoch::cuda
