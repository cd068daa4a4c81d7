// SPDX-License-Identifier: Apache-2.0
// The split-K epilogue of small-batch kernels: reduces integer partials of all chunks to outputs.
//
// Blocks split the dimensions of a linear by chunks and store one integer partial for every (chunk, row, token), in the
// layout of their mma accumulators. After a grid barrier, all blocks scale the partials and add them in chunk order.
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

// An even split of work items over the blocks of a grid, in contiguous ranges. Computed on the host, because an integer
// division on the device costs about 30 instructions.
struct BlockShare {
  uint32_t each = 0;  // items of a block
  uint32_t more = 0;  // the first `more` blocks have one item more

  static BlockShare Of(int64_t count, int64_t blocks) {
    STOCH_CHECK(count <= INT32_MAX);
    return {static_cast<uint32_t>(count / blocks), static_cast<uint32_t>(count % blocks)};
  }
#if defined(__CUDACC__)
  __device__ __forceinline__ int first() const { return static_cast<int>(blockIdx.x * each + min(blockIdx.x, more)); }
  __device__ __forceinline__ int end() const { return first() + static_cast<int>(each + (blockIdx.x < more ? 1 : 0)); }
#endif
};

// The tasks of a call, the partials of their products and the scales that turn partials into outputs; passed to kernels
// by value. A group is 16 weight rows, a tile 8 tokens: together the shape of one mma accumulator.
struct BatchOutputs {
  ScKernelTask tasks[kMaxScTasks];  // [task_count] weights and outputs; first_block counts groups
  int task_count = 0;
  ScDims dims;
  int groups = 0;  // groups of all tasks, each task padded to the rows that a kernel multiplies at a time
  int tiles = 0;   // tiles of 8 tokens, padded to the tokens that a kernel multiplies at a time
  float gain = 0;  // real value of one count; not used if `gains` is given
  ScActivationView a;
  const float* gains = nullptr;  // [chunks][scale_stride] value of one count if rows have their own lengths, else null
  int scale_stride = 0;          // floats from one chunk to the next in `gains` and, with gains, in a.scales
  SiteReporter reporter;
  // True for kernels of at most 4 tokens: an item then holds two groups, and the lanes that would hold tokens 4..7 hold
  // the second group's partials of tokens 0..3.
  bool four_tokens = false;
  // [chunks][parts][items][32 lanes][4]: integer partials. An item is an mma accumulator, items are [groups][tiles]
  // (four_tokens: [groups / 2]). A lane's four partials are of rows lane / 4 and 8 + lane / 4 of the group, each with
  // tokens 2 * (lane % 4) and the next. int16 if every partial fits: the reduction is bound by L2 bandwidth, so half
  // the bytes are half the time.
  void* partials = nullptr;
  bool wide = false;  // true: partials are int32; false: int16
  int parts = 1;      // parts of a chunk, 1 or 2, each with partials of its own

  BlockShare reduced;  // the range of reduce_units() that a block reduces

  // Number of tiles that have outputs; `tiles` may include padding.
  STOCH_LAYOUT_FN int used_tiles() const { return (static_cast<int>(a.tokens) + kTileTokens - 1) / kTileTokens; }
  // Number of units of the reduction of of_tiles tiles. A unit is half an item, over all chunks (ReduceStage).
  STOCH_LAYOUT_FN int reduce_units(int of_tiles) const { return four_tokens ? groups : groups * of_tiles * 2; }
  STOCH_LAYOUT_FN int reduce_units() const { return reduce_units(used_tiles()); }
  // Number of items of one part of a chunk.
  STOCH_LAYOUT_FN int items() const { return four_tokens ? groups / 2 : groups * tiles; }

  // Bytes of `partials`.
  int64_t partial_bytes() const {
    return dims.chunks * parts * items() * kGroupRows * kTileTokens *
           static_cast<int64_t>(wide ? sizeof(int32_t) : sizeof(int16_t));
  }
};

// Whether the sum of counts of a chunk may not fit int16.
inline bool PartialsAreWide(int max_count, const ScDims& dims) { return int64_t{max_count} * dims.chunk_d > INT16_MAX; }

// Describes the outputs of a call, except `partials`, `reduced` and `four_tokens`, which the caller sets. The rows of
// each task are padded to a multiple of `rows_at_once`, which is a multiple of 16; `tiles` are tiles of 8 tokens.
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

// The task that a group of 16 rows belongs to.
__device__ __forceinline__ const ScKernelTask& BatchTaskOf(const BatchOutputs& args, int group) {
  int t = 0;
  while (t + 1 < args.task_count && group >= args.tasks[t + 1].first_block) ++t;
  return args.tasks[t];
}

// Four partials as int16, s0 in the lowest bits.
__device__ __forceinline__ uint2 PackPartials(int32_t s0, int32_t s1, int32_t s2, int32_t s3) {
  return make_uint2(__byte_perm(static_cast<uint32_t>(s0), static_cast<uint32_t>(s1), 0x5410),
                    __byte_perm(static_cast<uint32_t>(s2), static_cast<uint32_t>(s3), 0x5410));
}

// Stores one lane's four partials of an item, in the order of BatchOutputs::partials. Requires: parts is 1.
__device__ __forceinline__ void StorePartials(const BatchOutputs& args, int64_t chunk, int item, int lane, int32_t s0,
                                              int32_t s1, int32_t s2, int32_t s3) {
  const int64_t at = (chunk * args.items() + item) * kWarp + lane;
  if (args.wide) {
    reinterpret_cast<int4*>(args.partials)[at] = make_int4(s0, s1, s2, s3);
  } else {
    reinterpret_cast<uint2*>(args.partials)[at] = PackPartials(s0, s1, s2, s3);
  }
}

// Loads four partials of a lane. at: index in [chunks][items][32 lanes].
__device__ __forceinline__ int4 LoadPartials(const BatchOutputs& args, int64_t at) {
  if (args.wide) return __ldcg(reinterpret_cast<const int4*>(args.partials) + at);
  const uint2 s = __ldcg(reinterpret_cast<const uint2*>(args.partials) + at);
  return make_int4(static_cast<int16_t>(s.x & 0xffff), static_cast<int16_t>(s.x >> 16),
                   static_cast<int16_t>(s.y & 0xffff), static_cast<int16_t>(s.y >> 16));
}

// Where one lane's four outputs are: rows row and row + 8 of `task`, each for tokens token and token + 1.
struct BatchItem {
  const ScKernelTask* task;
  int row;
  int token;
};

// Stores, or adds, a lane's four outputs: y.x and y.y are of item.row, y.z and y.w of item.row + 8. Skips padding rows
// and tokens.
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

// Sizes of a shared-memory stage of ReduceChunks, the split-K reduction. One warp reduces one unit over all chunks,
// through a private cp.async ring of partials and scales, so no block barrier is needed.
//
// A unit is half an mma accumulator: with r = 4 * (unit % 2), rows r to r + 3 and r + 8 to r + 11 of a group, for 8
// tokens (four_tokens: rows of these numbers in each of two groups, for 4 tokens). In every chunk a unit is 32
// contiguous words of two partials, one word a lane. A quad is four consecutive chunks.
//
// The reduction is bound by L2 bandwidth, so loads must be in flight on every SM at all times: sizing in
// docs/tuning/batch.md#2-to-16-tokens. The copies transpose scales, so that the four scales of a row or token in a quad
// are contiguous: a lane then takes the scales of four chunks with three shared loads. To load scales from global
// memory would take as long as to load the partials.
//
// kAtOnce: quads that are unrolled. If a warp has few units, an unrolled body costs instruction fetch (8B, 8 tokens: 2
// % of a step).
// kTiles:  the number of tiles that units are counted over (ReduceUnit), if known at compile time; 0: used_tiles().
// kMixed:  every (chunk, token) has a gain of its own.
template <bool kWide_, bool kFourTokens_, int kParts_, int kAtOnce_, int kTiles_, bool kMixed_ = false>
struct ReduceStage {
  static constexpr bool kMixed = kMixed_;
  static constexpr bool kWide = kWide_;
  static constexpr bool kFourTokens = kFourTokens_;
  static constexpr int kParts = kParts_;
  static constexpr int kAtOnce = kAtOnce_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kQuad = 4;   // chunks of a quad
  static constexpr int kQuads = 2;  // quads of a stage
  static constexpr int kChunks = kQuad * kQuads;
  static constexpr int kWordBytes = kWide ? 8 : 4;  // bytes of a word: the partials of tokens 2n and 2n + 1
  static constexpr int kUnitBytes = kWarp * kWordBytes;
  static constexpr int kLines = 8;                    // lanes that copy one chunk: the 32 lanes copy a quad
  static constexpr int kRows = kFourTokens ? 16 : 8;  // rows of a unit
  static constexpr int kTokens = kFourTokens ? 4 : kTileTokens;
  // Contents of a quad: partials [4 chunks][kParts][32 words], weight scales [kRows][4 chunks], activation scales
  // [kTokens][4 chunks] and, if kMixed, gains [kTokens][4 chunks].
  static constexpr int kPartialBytes = kQuad * kParts * kUnitBytes;
  static constexpr int kLineBytes = kQuad * static_cast<int>(sizeof(float));
  static constexpr int kQuadBytes = kPartialBytes + (kRows + kTokens * (kMixed ? 2 : 1)) * kLineBytes;
  static constexpr int kBytes = kQuads * kQuadBytes;
};

// Locates a unit of the reduction. kTiles as in ReduceStage: a division by a run-time number would take longer than
// most of a unit.
template <int kTiles>
struct ReduceUnit {
  const ScKernelTask* task;
  int word;   // index of the unit's partials in a chunk, in steps of kUnitBytes
  int row;    // first row of the unit in its task
  int token;  // first token of the unit
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

// Issues the asynchronous copies of a warp's units, stage by stage.
template <typename S>
struct UnitCopier {
  const BatchOutputs& args;
  int unit;       // unit of the next stage
  int end;        // end of the block's range of units
  int step;       // units from one of this warp's units to its next
  int begin = 0;  // first chunk of the next stage
  // Source addresses of this lane's copies in chunk begin + lane / 8.
  const uint8_t* partials = nullptr;  // partials, kUnitBytes / 8 bytes
  const float* scale_a = nullptr;     // scale of token lane % 8 of the unit
  const float* scale_b = nullptr;     // scale of row lane % 8 of the unit
  uint32_t rows_padded = 0;           // ScKernelTask::rows_padded of the unit's task
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
    // Padding rows and tokens may take any scale, because their outputs are not stored: addresses are clamped to valid
    // ones.
    const int token = min(at.token + line, static_cast<int>(args.a.tokens) - 1);
    const int row = min(at.row + line % 4 + line / 4 * 8, at.task->rows_padded - 1 - (S::kFourTokens ? kGroupRows : 0));
    rows_padded = static_cast<uint32_t>(at.task->rows_padded);
    partials = static_cast<const uint8_t*>(args.partials) + uint64_t{chunk} * chunk_bytes() +
               static_cast<uint32_t>(at.word * S::kUnitBytes + line * (S::kUnitBytes / S::kLines));
    scale_a = args.a.scales + static_cast<uint32_t>(static_cast<int>(chunk) * scale_stride() + token);
    scale_b = at.task->scales + (chunk * rows_padded + static_cast<uint32_t>(row));
  }

  // Issues the copies of one stage to shared address `stage` as one cp.async group, which is empty after the last unit.
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
        // Chunks past the last are zero-filled: their products are +0, and adding +0 changes no bits since y is never
        // -0.
        const bool have = begin + q * S::kQuad + chunk < chunks;
#pragma unroll
        for (int i = 0; i < S::kUnitBytes / S::kLines; i += 16) {
          CopyAsync16(to + i, partials + i, have);
          if constexpr (S::kParts == 2)
            CopyAsync16(to + S::kUnitBytes + i, partials + part_bytes() + i, have && args.parts == 2);
        }
        // Copied through the L1, because other warps of the block read the same scales. The L1 holds nothing stale: the
        // acquire of the grid barrier has invalidated it.
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

// The two partials of a word, of tokens 2n and 2n + 1: packed int16 or two int32.
__device__ __forceinline__ int2 WordPartials(uint32_t word) {
  return make_int2(static_cast<int16_t>(word & 0xffff), static_cast<int32_t>(word) >> 16);
}
__device__ __forceinline__ int2 WordPartials(const int2& word) { return word; }

// y += the products of a quad's four chunks, in chunk order. y.x is of token `token` of the unit, y.y of the next.
// word: index of this lane's partials in the unit's 32 words; line: index of this lane's row among the unit's kRows.
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

// Reduces the partials of all chunks to outputs, by warps 0..kWarps-1 of every block of the grid. All these warps call
// await(), which returns once all partials are visible (a grid barrier).
// Requires: args.reduced splits args.reduce_units(kTiles), or reduce_units() where S has kTiles 0; with S::kMixed
//           every (chunk, token) of args has a gain; `shared` has kBytes bytes, 16-byte aligned, that no warp uses any
//           more; the ReduceStage S matches args in wide, four_tokens and tiles, and has at least args.parts parts.
//
// A warp's ring takes kBytes / kWarps bytes of `shared`, or twice as much if the block has so few units that only half
// of its warps get one.
template <typename S, int kWarps, int kBytes, typename Await>
__device__ __forceinline__ void ReduceChunks(const BatchOutputs& args, uint8_t* shared, const Await& await) {
  constexpr int kStages = kBytes / kWarps / S::kBytes;
  static_assert(kStages >= 2);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int chunks = static_cast<int>(args.dims.chunks);
  // A block takes a contiguous range of units, because neighbouring units share scales.
  const int first = args.reduced.first();
  const int end = args.reduced.end();
  const bool deep = end - first <= kWarps / 2;
  const int stages = deep ? 2 * kStages : kStages;
  uint8_t* const ring = shared + warp * stages * S::kBytes;
  const auto ring_at = SharedAddress(ring);
  const int ring_bytes = stages * S::kBytes;

  // A warp without a unit gets here too, because await() has barriers of the whole block; its copier computes addresses
  // but copies nothing.
  UnitCopier<S> copier(args, first + warp, end, kWarps);
  await();
  int fill = 0;         // byte offset in the ring of the stage that is issued next
  int take = 0;         // byte offset in the ring of the stage that is added to y next
  bool filled = false;  // whether all stages of the ring but one have been issued
  const auto next = [&](int at) { return at + S::kBytes == ring_bytes ? 0 : at + S::kBytes; };
  // Index of this lane's row among the unit's rows, and of its first token among the unit's tokens.
  const int line = lane / 8 + lane % 2 * 4 + (S::kFourTokens ? lane / 4 % 2 * 8 : 0);
  const int token = lane / 2 % (S::kFourTokens ? 2 : 4) * 2;
  for (int u = first + warp; u < end; u += kWarps) {
    const ReduceUnit<S::kTiles> unit(args, u);
    const int row = unit.row + line % 4 + line / 4 * 8;  // with four_tokens, lines 8 to 15 are of the second group
    float* const out = unit.task->out + (unit.token + token) * unit.task->out_stride + row;
    const int64_t stride = unit.task->out_stride;
    const bool store = row < unit.task->rows && unit.token + token < args.a.tokens;
    const bool store_next = store && unit.token + token + 1 < args.a.tokens;
    const bool add = unit.task->add;
    // The old outputs are loaded before the chunks: at the end nothing would be left to hide their latency.
    const float old[2] = {add && store ? out[0] : 0.0f, add && store_next ? out[stride] : 0.0f};
    float2 y = make_float2(0.0f, 0.0f);
    for (int begin = 0; begin < chunks; begin += S::kChunks) {
      // The prologue of the pipeline, which issues the first stages, shares this loop so that Issue is inlined only
      // once.
#pragma unroll 1
      for (;; fill = next(fill)) {
        const bool last = filled;
        if (last) {
          if (deep) {
            WaitForCopies<2 * kStages - 2>();
          } else {
            WaitForCopies<kStages - 2>();
          }
          __syncwarp();  // all lanes see the oldest stage and have read the stage that Issue overwrites
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

// ReduceChunks for more than four tokens and chunks of one part; picks the ReduceStage by args.wide.
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
