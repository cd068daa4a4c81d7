// The second half of a small-batch kernel: integer sums of chunks, which many blocks wrote, become outputs.
//
// Blocks split the dimensions of a linear by chunks and leave a sum for every (chunk, row, token) in memory, as their
// mma holds them. Once all have, they scale the sums and add them in chunk order.
#pragma once

#include <climits>

#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/sc_batch.h"
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
  // [chunks][items][lane][4], items being [groups][tiles] ([groups / 2] where few): rows lane / 4 and 8 + lane / 4, of
  // each tokens 2 * (lane % 4) and the next. int16 where every sum fits: half the bytes are half the time they take
  // through the second-level cache.
  void* sums = nullptr;
  bool wide = false;  // int32

  STOCH_LAYOUT_FN int items() const { return few ? groups / 2 : groups * tiles; }
  int64_t sum_bytes() const {
    return dims.chunks * items() * kGroupRows * kTileTokens *
           static_cast<int64_t>(wide ? sizeof(int32_t) : sizeof(int16_t));
  }
};

// What: the tasks and shape of a call, each task padded to a multiple of `rows_at_once` (a multiple of 16); sums are
// left
//       to the caller.
inline BatchOutputs MakeBatchOutputs(const ScTables& tables, const ScActivationView& a, const FiniteReporter& reporter,
                                     const ScLinearTask* tasks, int count, int rows_at_once, int tiles) {
  BatchOutputs r;
  r.task_count = count;
  r.dims = tasks[0].weight.dims;
  r.tiles = tiles;
  r.gain = tables.gain;
  r.a = a;
  r.reporter = reporter;
  r.wide = int64_t{tables.max_count} * r.dims.chunk_d > INT16_MAX;
  for (int i = 0; i < count; ++i) {
    const ScWeightView& w = tasks[i].weight;
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

// A lane's four sums of an item.
__device__ __forceinline__ void StoreSums(const BatchOutputs& args, int64_t chunk, int item, int lane, int32_t s0,
                                          int32_t s1, int32_t s2, int32_t s3) {
  const int64_t at = (chunk * args.items() + item) * kWarp + lane;
  if (args.wide) {
    reinterpret_cast<int4*>(args.sums)[at] = make_int4(s0, s1, s2, s3);
  } else {
    reinterpret_cast<uint2*>(args.sums)[at] =
        make_uint2(__byte_perm(static_cast<uint32_t>(s0), static_cast<uint32_t>(s1), 0x5410),
                   __byte_perm(static_cast<uint32_t>(s2), static_cast<uint32_t>(s3), 0x5410));
  }
}
__device__ __forceinline__ int4 LoadSums(const BatchOutputs& args, int64_t at) {
  if (args.wide) return __ldcg(reinterpret_cast<const int4*>(args.sums) + at);
  const uint2 s = __ldcg(reinterpret_cast<const uint2*>(args.sums) + at);
  return make_int4(static_cast<int16_t>(s.x & 0xffff), static_cast<int16_t>(s.x >> 16),
                   static_cast<int16_t>(s.y & 0xffff), static_cast<int16_t>(s.y >> 16));
}

// Where an item's outputs are for a lane: rows row and row + 8 of tokens token and token + 1.
struct BatchItem {
  const BatchTask* task;
  int row;
  int token;
  __device__ BatchItem() {}
  __device__ BatchItem(const BatchOutputs& args, int item, int lane) {
    const int group = args.few ? 2 * item + lane % 4 / 2 : item / args.tiles;
    task = &BatchTaskOf(args, group);
    row = (group - task->first_group) * kGroupRows + lane / 4;
    token = args.few ? lane % 2 * 2 : item % args.tiles * kTileTokens + lane % 4 * 2;
  }
};

// What makes the four products of a lane from one chunk, and the way to a later chunk.
struct BatchTerms {
  int64_t at;  // of the sums
  const float* scale_a[2];
  const float* scale_b;
  __device__ BatchTerms(const BatchOutputs& args, const BatchItem& item, int index, int64_t chunk, int lane) {
    // Padding rows and tokens take any scale: their outputs are not stored.
    const int last = static_cast<int>(args.a.rows) - 1;
    at = (chunk * args.items() + index) * kWarp + lane;
    scale_a[0] = args.a.scales + chunk * args.a.rows + min(item.token, last);
    scale_a[1] = args.a.scales + chunk * args.a.rows + min(item.token + 1, last);
    scale_b = item.task->scales + chunk * item.task->rows_padded + min(item.row, item.task->rows_padded - 9);
  }
  __device__ void Advance(const BatchOutputs& args, const BatchItem& item, int64_t chunks) {
    at += chunks * args.items() * kWarp;
    scale_a[0] += chunks * args.a.rows;
    scale_a[1] += chunks * args.a.rows;
    scale_b += chunks * item.task->rows_padded;
  }
  __device__ float4 Products(const BatchOutputs& args) const {
    const int4 s = LoadSums(args, at);
    const float a[2] = {__ldg(scale_a[0]), __ldg(scale_a[1])};
    const float b[2] = {__ldg(scale_b), __ldg(scale_b + 8)};
    return make_float4(BipolarProduct(s.x, args.gain, a[0], b[0]), BipolarProduct(s.y, args.gain, a[1], b[0]),
                       BipolarProduct(s.z, args.gain, a[0], b[1]), BipolarProduct(s.w, args.gain, a[1], b[1]));
  }
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

// What:     all outputs, by warps 0..kWarps-1 of every block. Warps fetch together and one adds up each item: what
// takes
//           time are latencies.
// Requires: all sums written and visible; `shared` has kBytes; sync() is a barrier of the kWarps warps.
template <int kWarps, int kBytes, typename Sync>
__device__ void CombineSums(const BatchOutputs& args, uint8_t* shared, const Sync& sync) {
  constexpr int kProducts = kBytes / (kWarp * static_cast<int>(sizeof(float4)));
  auto* products = reinterpret_cast<float4*>(shared);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int chunks = static_cast<int>(args.dims.chunks);
  const int items = args.items();
  const int step = static_cast<int>(gridDim.x);
  const int at_once = max(1, min(kWarps, kProducts / chunks));
  for (int first = static_cast<int>(blockIdx.x); first < items; first += at_once * step) {
    const int count = min(at_once, (items - first + step - 1) / step);
    float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int begin = 0; begin < chunks; begin += kProducts) {
      const int some = min(kProducts, chunks - begin);
      sync();
      // Warp w fetches chunks w / count, w / count + stride, ... of item w % count.
      const int stride = kWarps / count;
      if (warp < stride * count) {
        const int slot = warp % count;
        const int index = first + slot * step;
        const BatchItem item(args, index, lane);
        BatchTerms terms(args, item, index, begin + warp / count, lane);
#pragma unroll 8
        for (int c = warp / count; c < some; c += stride) {
          products[(slot * some + c) * kWarp + lane] = terms.Products(args);
          terms.Advance(args, item, stride);
        }
      }
      sync();
      if (warp >= count) continue;
#pragma unroll 8
      for (int c = 0; c < some; ++c) {
        const float4 p = products[(warp * some + c) * kWarp + lane];
        y = make_float4(y.x + p.x, y.y + p.y, y.z + p.z, y.w + p.w);
      }
    }
    if (warp < count) StoreOutputs(args, BatchItem(args, first + warp * step, lane), y);
  }
}

#endif

}  // namespace stoch::cuda
