// The second half of a small-batch kernel: integer sums of chunks, which many blocks wrote, become outputs.
//
// Blocks split the dimensions of a linear by chunks and leave a sum for every (chunk, row, token) in memory, as their
// mma holds them. Once all have, they scale the sums and add them in chunk order.
#pragma once

#include <climits>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {

inline constexpr int kGroupRows = 16;  // weight rows of an mma
inline constexpr int kTileTokens = 8;  // tokens of an mma

struct BatchTask {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int rows = 0;
  int rows_padded = 0;
  int first_group = 0;  // of its groups of 16 rows among those of all tasks
  bool add = false;
};

// What every block of a kernel gets of so many things in a row; divided here, as a block would wait for a division.
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
  BatchTask tasks[kMaxBatchTasks];
  int task_count = 0;
  ScDims dims;
  int groups = 0;  // of all tasks, each padded to what a kernel works on at a time
  int tiles = 0;   // of 8 tokens
  float gain = 0;
  ScActivationView a;
  FiniteReporter reporter;
  bool few = false;  // at most 4 tokens: an item is two groups, lanes of tokens 4..7 hold the second's sums of 0..3
  // [chunks][parts][items][lane][4], items being [groups][tiles] ([groups / 2] where few): rows lane / 4 and
  // 8 + lane / 4, of each tokens 2 * (lane % 4) and the next. int16 where every sum fits: half the bytes are half the
  // time they take through the second-level cache.
  void* sums = nullptr;
  bool wide = false;  // int32
  int parts = 1;      // of a chunk, 1 or 2, whose sums are apart

  BlockShare combined;  // what of combine_units() a block combines

  // Tiles that have outputs: fewer than `tiles` where those are padded to what a kernel works on at a time.
  STOCH_LAYOUT_FN int used_tiles() const { return (static_cast<int>(a.rows) + kTileTokens - 1) / kTileTokens; }
  STOCH_LAYOUT_FN int combine_units() const { return few ? groups : groups * used_tiles() * 2; }
  STOCH_LAYOUT_FN int items() const { return few ? groups / 2 : groups * tiles; }

  int64_t sum_bytes() const {
    return dims.chunks * parts * items() * kGroupRows * kTileTokens *
           static_cast<int64_t>(wide ? sizeof(int32_t) : sizeof(int16_t));
  }
};

inline bool SumsAreWide(int max_count, const ScDims& dims) { return int64_t{max_count} * dims.chunk_d > INT16_MAX; }

// What: the tasks and shape of a call, each task padded to a multiple of `rows_at_once`, itself one of 16. The caller
//       provides for sums.
inline BatchOutputs MakeBatchOutputs(const ScTables& tables, const ScActivationView& a, const FiniteReporter& reporter,
                                     const ScLinearTask* tasks, int count, int rows_at_once, int tiles) {
  BatchOutputs r;
  r.task_count = count;
  r.dims = tasks[0].weight.dims;
  r.tiles = tiles;
  r.gain = tables.gain;
  r.a = a;
  r.reporter = reporter;
  r.wide = SumsAreWide(tables.max_count, r.dims);
  for (int i = 0; i < count; ++i) {
    const ScWeightView& w = tasks[i].weight;
    STOCH_CHECK(r.dims.chunks * w.rows_padded <= INT32_MAX);
    r.tasks[i] = {w.codes,
                  w.scales,
                  tasks[i].out.data,
                  tasks[i].out.stride,
                  static_cast<int>(w.rows),
                  static_cast<int>(w.rows_padded),
                  r.groups,
                  tasks[i].out.add};
    r.groups += static_cast<int>((w.rows + rows_at_once - 1) / rows_at_once) * (rows_at_once / kGroupRows);
  }
  return r;
}

#if defined(__CUDACC__)

__device__ __forceinline__ const BatchTask& BatchTaskOf(const BatchOutputs& args, int group) {
  int t = 0;
  while (t + 1 < args.task_count && group >= args.tasks[t + 1].first_group) ++t;
  return args.tasks[t];
}

__device__ __forceinline__ uint2 PackSums(int32_t s0, int32_t s1, int32_t s2, int32_t s3) {
  return make_uint2(__byte_perm(static_cast<uint32_t>(s0), static_cast<uint32_t>(s1), 0x5410),
                    __byte_perm(static_cast<uint32_t>(s2), static_cast<uint32_t>(s3), 0x5410));
}

// A lane's four sums of an item.
__device__ __forceinline__ void StoreSums(const BatchOutputs& args, int64_t chunk, int item, int lane, int32_t s0,
                                          int32_t s1, int32_t s2, int32_t s3) {
  const int64_t at = (chunk * args.items() + item) * kWarp + lane;
  if (args.wide) {
    reinterpret_cast<int4*>(args.sums)[at] = make_int4(s0, s1, s2, s3);
  } else {
    reinterpret_cast<uint2*>(args.sums)[at] = PackSums(s0, s1, s2, s3);
  }
}

__device__ __forceinline__ int4 LoadSums(const BatchOutputs& args, int64_t at) {
  if (args.wide) return __ldcg(reinterpret_cast<const int4*>(args.sums) + at);
  const uint2 s = __ldcg(reinterpret_cast<const uint2*>(args.sums) + at);
  return make_int4(static_cast<int16_t>(s.x & 0xffff), static_cast<int16_t>(s.x >> 16),
                   static_cast<int16_t>(s.y & 0xffff), static_cast<int16_t>(s.y >> 16));
}

// Where a lane's four outputs of an item are: rows row and row + 8 of tokens token and token + 1.
struct BatchItem {
  const BatchTask* task;
  int row;
  int token;
};

__device__ __forceinline__ void StoreOutputs(const BatchOutputs& args, const BatchItem& item, const float4& y) {
  const float values[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = item.row + i / 2 * 8;
    const int token = item.token + i % 2;
    if (row >= item.task->rows || token >= args.a.rows) continue;
    float* to = item.task->out + token * item.task->out_stride + row;
    const float value = item.task->add ? *to + values[i] : values[i];
    if (!IsFinite(value)) args.reporter.Report();
    *to = value;
  }
}

// How CombineUnits works. A unit is half an item, rows 4 * (unit % 2) and the next three, and the same 8 rows further
// on: the 32 words of two sums that lie together in every chunk, one a lane. A warp adds a unit alone, as a pipeline of
// its own: it copies chunks ahead into its part of shared memory, sums and both scales, and waits for nobody else.
//
// What bounds it is reading the partials from L2, so bytes have to be in flight on every SM at all times: sizing in
// docs/tuning.md#2-to-16-tokens-sc_batch_few-sc_batch_table. Scales are copied by the warp so that four chunks are
// contiguous: two copies and three loads for four chunks, where a lane's own loads would take as long as the sums.
// Where few, a unit is 16 rows of two groups and 4 tokens.
//
// kAtOnce: quads whose instructions are laid out one after another. Where a warp adds few units, they are executed a
// few times and what they cost is being fetched: all are there once (8B, 8 tokens: 2 % of a step).
template <bool kWide_, bool kFew_, int kParts_, int kAtOnce_, int kTiles_>
struct CombineStage {
  static constexpr bool kWide = kWide_;
  static constexpr bool kFew = kFew_;
  static constexpr int kParts = kParts_;
  static constexpr int kAtOnce = kAtOnce_;
  static constexpr int kTiles = kTiles_;
  static constexpr int kQuad = 4;   // chunks that a copy of a lane, or a vector of scales, spans
  static constexpr int kQuads = 2;  // of a stage
  static constexpr int kChunks = kQuad * kQuads;
  static constexpr int kWordBytes = kWide ? 8 : 4;  // two sums: tokens 2n and 2n + 1
  static constexpr int kUnitBytes = kWarp * kWordBytes;
  static constexpr int kLines = 8;  // that a copy of all lanes spans
  static constexpr int kRows = kFew ? 16 : 8;
  static constexpr int kTokens = kFew ? 4 : kTileTokens;
  // Of a quad: sums [4][kParts][32 words], weight scales [kRows][4], activation scales [kTokens][4].
  static constexpr int kSumBytes = kQuad * kParts * kUnitBytes;
  static constexpr int kLineBytes = kQuad * static_cast<int>(sizeof(float));
  static constexpr int kQuadBytes = kSumBytes + (kRows + kTokens) * kLineBytes;
  static constexpr int kBytes = kQuads * kQuadBytes;
};

// 16 bytes past the first-level cache, which is not coherent; zeros unless `have`.
__device__ __forceinline__ void CopySums(uint32_t to, const uint8_t* from, bool have) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(have ? 16 : 0) : "memory");
}
// Through it: other warps of the block want the same scales. Nothing stale is there: whoever waited for the kernel's
// barrier has emptied it.
__device__ __forceinline__ void CopyScale(uint32_t to, const float* from, bool have) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(have ? 4 : 0) : "memory");
}
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until all groups but the last kPending have arrived.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// kTiles: args.used_tiles() where the kernel knows it, or 0: a division takes longer than most of what a unit needs.
template <int kTiles>
struct CombineUnit {
  const BatchTask* task;
  int word;   // of its first sums in a chunk, in units
  int row;    // the first
  int token;  // the first
  __device__ CombineUnit(const BatchOutputs& args, int unit) {
    const int tiles = kTiles > 0 ? kTiles : args.used_tiles();
    const int group = args.few ? unit / 2 * 2 : unit / 2 / tiles;
    const int tile = args.few ? 0 : unit / 2 % tiles;
    task = &BatchTaskOf(args, group);
    word = (args.few ? unit / 2 : group * args.tiles + tile) * 2 + unit % 2;
    row = (group - task->first_group) * kGroupRows + unit % 2 * 4;
    token = tile * kTileTokens;
  }
};

// Copies the stages of a warp's units, one after another.
template <typename S>
struct UnitCopier {
  const BatchOutputs& args;
  int unit;  // the next stage's
  int end;
  int step;
  int begin = 0;                   // the next stage's first chunk
  const uint8_t* sums = nullptr;   // what this lane copies: of chunk begin + lane / 8 a vector of sums, and of
  const float* scale_a = nullptr;  // one token and
  const float* scale_b = nullptr;  // one row the scale
  uint32_t rows_padded = 0;
  __device__ UnitCopier(const BatchOutputs& outputs, int first, int units_end, int unit_step)
      : args(outputs), unit(first), end(units_end), step(unit_step) {
    Start();
  }
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ uint32_t part_bytes() const { return static_cast<uint32_t>(args.items()) * 2 * S::kUnitBytes; }
  __device__ uint32_t chunk_bytes() const { return part_bytes() * static_cast<uint32_t>(args.parts); }

  __device__ void Start() {
    const CombineUnit<S::kTiles> at(args, unit);
    const auto chunk = static_cast<uint32_t>(lane() / S::kLines);
    const int line = lane() % S::kLines;
    // Padding rows and tokens take any scale: their outputs are not stored.
    const int token = min(at.token + line, static_cast<int>(args.a.rows) - 1);
    const int row = min(at.row + line % 4 + line / 4 * 8, at.task->rows_padded - 1 - (S::kFew ? kGroupRows : 0));
    rows_padded = static_cast<uint32_t>(at.task->rows_padded);
    sums = static_cast<const uint8_t*>(args.sums) + uint64_t{chunk} * chunk_bytes() +
           static_cast<uint32_t>(at.word * S::kUnitBytes + line * (S::kUnitBytes / S::kLines));
    scale_a = args.a.scales + static_cast<uint32_t>(static_cast<int>(chunk) * static_cast<int>(args.a.rows) + token);
    scale_b = at.task->scales + (chunk * rows_padded + static_cast<uint32_t>(row));
  }

  // One stage, or nothing, as a group of copies.
  __device__ void Issue(uint32_t stage) {
    if (unit < end) {
      const int chunks = static_cast<int>(args.dims.chunks);
      const int line = lane() % S::kLines;
#pragma unroll S::kAtOnce
      for (int q = 0; q < S::kQuads; ++q) {
        const int chunk = lane() / S::kLines;
        const uint32_t quad = stage + q * S::kQuadBytes;
        const uint32_t to = quad + chunk * S::kParts * S::kUnitBytes + line * (S::kUnitBytes / S::kLines);
        const uint32_t scale_to = quad + S::kSumBytes + line * S::kLineBytes + chunk * static_cast<int>(sizeof(float));
        // Chunks beyond the last are products of +0, which change nothing: y is never -0.
        const bool have = begin + q * S::kQuad + chunk < chunks;
#pragma unroll
        for (int i = 0; i < S::kUnitBytes / S::kLines; i += 16) {
          CopySums(to + i, sums + i, have);
          if constexpr (S::kParts == 2)
            CopySums(to + S::kUnitBytes + i, sums + part_bytes() + i, have && args.parts == 2);
        }
        CopyScale(scale_to, scale_b, have);
        if constexpr (S::kFew) CopyScale(scale_to + S::kLines * S::kLineBytes, scale_b + kGroupRows, have);
        if (line < S::kTokens) CopyScale(scale_to + S::kRows * S::kLineBytes, scale_a, have);
        sums += S::kQuad * chunk_bytes();
        scale_a += S::kQuad * static_cast<uint32_t>(args.a.rows);
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

// A word: the sums of two tokens.
__device__ __forceinline__ int2 WordSums(uint32_t word) {
  return make_int2(static_cast<int16_t>(word & 0xffff), static_cast<int32_t>(word) >> 16);
}
__device__ __forceinline__ int2 WordSums(const int2& word) { return word; }

// y += the products of four chunks of a quad, in order. `word`: of this lane's sums in the unit.
template <typename S>
__device__ __forceinline__ void AddQuad(const uint8_t* quad, int word, int line, int token, float gain, float2& y) {
  using Word = std::conditional_t<S::kWide, int2, uint32_t>;
  const auto* words = reinterpret_cast<const Word*>(quad) + word;
  const auto* scales = reinterpret_cast<const float4*>(quad + S::kSumBytes);
  const float4 scale_b = scales[line];
  const float4 scale_a[2] = {scales[S::kRows + token], scales[S::kRows + token + 1]};
  const float b[4] = {scale_b.x, scale_b.y, scale_b.z, scale_b.w};
  const float a0[4] = {scale_a[0].x, scale_a[0].y, scale_a[0].z, scale_a[0].w};
  const float a1[4] = {scale_a[1].x, scale_a[1].y, scale_a[1].z, scale_a[1].w};
#pragma unroll
  for (int c = 0; c < S::kQuad; ++c) {
    int2 s = WordSums(words[c * S::kParts * kWarp]);
    if constexpr (S::kParts == 2) {
      const int2 more = WordSums(words[(c * S::kParts + 1) * kWarp]);
      s = make_int2(s.x + more.x, s.y + more.y);
    }
    y.x = y.x + BipolarProduct(s.x, gain, a0[c], b[c]);
    y.y = y.y + BipolarProduct(s.y, gain, a1[c], b[c]);
  }
}

// What:     all outputs, by warps 0..kWarps-1 of every block; await() returns once all sums are written and visible.
// Requires: args.combined of args.combine_units; `shared` has kBytes, aligned to 16, and none of the warps uses it any
//           more; S, a CombineStage, is of args: wide or not, few or not, tiles, and parts no more than its own.
//
// Every warp has kBytes / kWarps of `shared`, or twice that where half the warps do all.
template <typename S, int kWarps, int kBytes, typename Await>
__device__ __forceinline__ void CombineUnits(const BatchOutputs& args, uint8_t* shared, const Await& await) {
  constexpr int kStages = kBytes / kWarps / S::kBytes;
  static_assert(kStages >= 2);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int chunks = static_cast<int>(args.dims.chunks);
  // Neighbours share scales, so a block takes a range.
  const int first = args.combined.first();
  const int end = args.combined.end();
  const bool deep = end - first <= kWarps / 2;
  const int stages = deep ? 2 * kStages : kStages;
  uint8_t* const ring = shared + warp * stages * S::kBytes;
  const auto ring_at = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
  const int ring_bytes = stages * S::kBytes;

  // Addresses only, so for a warp without a unit too: all await together, as that has barriers of the block.
  UnitCopier<S> copier(args, first + warp, end, kWarps);
  await();
  int fill = 0;         // where the next stage goes, and
  int take = 0;         // where the one to add is
  bool filled = false;  // all stages but one are on their way
  const auto next = [&](int at) { return at + S::kBytes == ring_bytes ? 0 : at + S::kBytes; };
  // This lane's row and its first token, of the unit's.
  const int line = lane / 8 + lane % 2 * 4 + (S::kFew ? lane / 4 % 2 * 8 : 0);
  const int token = lane / 2 % (S::kFew ? 2 : 4) * 2;
  for (int u = first + warp; u < end; u += kWarps) {
    const CombineUnit<S::kTiles> unit(args, u);
    const int row = unit.row + line % 4 + line / 4 * 8;  // where few, line / 8 is a group of 16 rows
    float* const out = unit.task->out + (unit.token + token) * unit.task->out_stride + row;
    const int64_t stride = unit.task->out_stride;
    const bool store = row < unit.task->rows && unit.token + token < args.a.rows;
    const bool store_next = store && unit.token + token + 1 < args.a.rows;
    const bool add = unit.task->add;
    // Asked for now: at the end nothing would be left to hide the latency.
    const float old[2] = {add && store ? out[0] : 0.0f, add && store_next ? out[stride] : 0.0f};
    float2 y = make_float2(0.0f, 0.0f);
    for (int begin = 0; begin < chunks; begin += S::kChunks) {
      // The first stages are asked for here as well: Issue is there once.
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

// What: CombineUnits of sums that may be wide, in one part, not few; for many tokens.
template <int kWarps, int kBytes, typename Await>
__device__ void CombineSums(const BatchOutputs& args, uint8_t* shared, const Await& await) {
  if (args.wide) {
    CombineUnits<CombineStage<true, false, 1, 2, 0>, kWarps, kBytes>(args, shared, await);
  } else {
    CombineUnits<CombineStage<false, false, 1, 2, 0>, kWarps, kBytes>(args, shared, await);
  }
}

#endif

}  // namespace stoch::cuda
