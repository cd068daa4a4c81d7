// SPDX-License-Identifier: Apache-2.0
// Modes kPerHead and kPerRow: in each pass, q and the whole window (all positions so far) of every sequence are
// quantized again (docs/sc_arithmetic.md#6-in-the-model).
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/head_vector.cuh"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kChunkTokens = 64;  // positions that a block works on

struct WindowArgs {
  AttentionArgs attention;
  QueryCodes q;
  WindowScales scales;
  bool per_head = false;
  int qk_q_max = 0;
  int av_q_max = 0;
  // Largest magnitudes as float bits, which are ordered as integers, so atomicMax finds the maximum in any order.
  // Zeroed before the kernels.
  uint32_t* q_max = nullptr;  // kPerHead: [sequences][num_heads]
  uint32_t* k_max = nullptr;  // kPerHead: [sequences][num_kv_heads]
  // [sequences][num_kv_heads][head_dim]; in kPerHead all channels of a head have the largest magnitude of the head.
  uint32_t* v_max = nullptr;
};

// A block's work: positions [begin, end) of one KV head of one sequence.
struct Chunk {
  int32_t sequence;
  // KV head.
  int head;
  int begin;
  int end;
  // Page table of the sequence.
  const int32_t* pages;
};

// Returns the calling block's chunk. The grid is (chunks of the longest sequence, KV heads, sequences).
__device__ Chunk ChunkOfBlock(const AttentionArgs& a) {
  Chunk c;
  c.sequence = static_cast<int32_t>(blockIdx.z);
  c.head = static_cast<int>(blockIdx.y);
  c.begin = static_cast<int>(blockIdx.x) * kChunkTokens;
  c.end = min(c.begin + kChunkTokens, a.pass.sequences[c.sequence].length);
  c.pages = a.pass.pages + static_cast<int64_t>(c.sequence) * a.pass.max_pages;
  return c;
}

// Offset of dimension 0 of position t in kv.k and kv.v.
__device__ int64_t ValueOffset(const KvView& kv, const Chunk& c, int t) {
  return kv.Value(c.pages[t >> kv.page_shift], c.head, t & (kv.page_tokens - 1));
}

// Finds the largest magnitudes of v per channel, or in kPerHead those of k and v per head, into args.k_max and
// args.v_max. One block per chunk; thread d takes dimension d.
__global__ void __launch_bounds__(kThreads) WindowMaxKernel(const WindowArgs args) {
  __shared__ uint32_t head_max[2];
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  const Chunk c = ChunkOfBlock(a);
  if (c.begin >= c.end) return;
  const int dim = static_cast<int>(threadIdx.x);
  uint32_t k_max = 0;
  uint32_t v_max = 0;
  if (dim < kv.head_dim) {
    for (int t = c.begin; t < c.end; ++t) {
      const int64_t offset = ValueOffset(kv, c, t) + dim;
      v_max = max(v_max, FloatToBits(kv.v[offset]) & 0x7fffffffu);
      if (args.per_head) k_max = max(k_max, FloatToBits(kv.k[offset]) & 0x7fffffffu);
    }
  }
  const int64_t head = static_cast<int64_t>(c.sequence) * kv.num_kv_heads + c.head;
  if (args.per_head) {
    if (threadIdx.x < 2) head_max[threadIdx.x] = 0;
    __syncthreads();
    k_max = __reduce_max_sync(0xffffffffu, k_max);
    v_max = __reduce_max_sync(0xffffffffu, v_max);
    if ((threadIdx.x & 31) == 0) {
      atomicMax(&head_max[0], k_max);
      atomicMax(&head_max[1], v_max);
    }
    __syncthreads();
    v_max = head_max[1];
    if (dim == 0) atomicMax(args.k_max + head, head_max[0]);
  }
  if (dim < kv.head_dim) atomicMax(args.v_max + head * kv.head_dim + dim, v_max);
}

// Writes the codes and scales of k and v, one block per chunk: first a warp quantizes the key of one position at a
// time, then thread d the values of channel d.
__global__ void __launch_bounds__(kThreads) WindowCodesKernel(const WindowArgs args) {
  const AttentionArgs& a = args.attention;
  const KvView& kv = a.kv;
  const Chunk c = ChunkOfBlock(a);
  if (c.begin >= c.end) return;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int page_mask = kv.page_tokens - 1;
  const int64_t head = static_cast<int64_t>(c.sequence) * kv.num_kv_heads + c.head;

  for (int t = c.begin + warp; t < c.end; t += kWarps) {
    const int32_t page = c.pages[t >> kv.page_shift];
    const int slot = t & page_mask;
    HeadVector<> x;
    LoadHead(x, kv.k + kv.Value(page, c.head, slot), kv.head_dim / 2, lane);
    const float largest = args.per_head ? BitsToFloat(args.k_max[head]) : WarpMaxAbs(x);
    const float scale = BipolarScale(largest, args.qk_q_max);
    if (lane == 0) kv.k_scales[kv.Scale(page, c.head, slot)] = scale;
    uint8_t* codes = reinterpret_cast<uint8_t*>(kv.k_words);
    ForEachDim(x, kv.head_dim / 2, lane, [&](int i, float value) {
      codes[kv.KWord(page, c.head, i >> 2, slot) * 4 + (i & 3)] =
          SignMagnitude(BipolarLevel(value, scale, args.qk_q_max));
    });
  }

  const int dim = static_cast<int>(threadIdx.x);
  if (dim >= kv.head_dim) return;
  const float scale = BipolarScale(BitsToFloat(args.v_max[head * kv.head_dim + dim]), args.av_q_max);
  if (c.begin == 0) args.scales.v_channels[head * kv.head_dim + dim] = scale;
  for (int t = c.begin; t < c.end; t += 4) {
    uint32_t word = 0;
    for (int j = 0; j < 4 && t + j < c.end; ++j) {
      const float value = kv.v[ValueOffset(kv, c, t + j) + dim];
      word |= static_cast<uint32_t>(SignMagnitude(BipolarLevel(value, scale, args.av_q_max))) << (8 * j);
    }
    kv.v_words[kv.VWord(c.pages[t >> kv.page_shift], c.head, (t & page_mask) >> 2, dim)] = word;
  }
}

// Quantizes queries, one warp per (row, query head). kMax: only finds the largest magnitude of each (sequence, head).
template <bool kMax>
__global__ void __launch_bounds__(kThreads) WindowQueryKernel(const WindowArgs args) {
  const AttentionArgs& a = args.attention;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int index = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x >> 5);
  const int row = index / a.num_heads;
  const int head = index % a.num_heads;
  if (row >= a.rows) return;
  const int half = a.kv.head_dim / 2;
  HeadVector<> x;
  LoadHead(x, a.q + row * a.q_stride + static_cast<int64_t>(head) * a.kv.head_dim, half, lane);
  uint32_t* window_max = args.q_max + static_cast<int64_t>(a.pass.row_sequence[row]) * a.num_heads + head;
  if constexpr (kMax) {
    const float largest = WarpMaxAbs(x);
    if (lane == 0) atomicMax(window_max, FloatToBits(largest));
  } else {
    const float largest = args.per_head ? BitsToFloat(*window_max) : WarpMaxAbs(x);
    const float scale = BipolarScale(largest, args.qk_q_max);
    const int64_t vector = static_cast<int64_t>(row) * a.num_heads + head;
    if (lane == 0) args.q.scales[vector] = scale;
    uint8_t* codes = reinterpret_cast<uint8_t*>(args.q.words) + vector * a.kv.head_dim;
    ForEachDim(x, half, lane,
               [&](int i, float value) { codes[i] = SignMagnitude(BipolarLevel(value, scale, args.qk_q_max)); });
  }
}

}  // namespace

void LaunchQuantizeWindow(DeviceContext& ctx, const AttentionArgs& args, AttentionMode mode, int32_t sequences,
                          int32_t max_length, int qk_q_max, int av_q_max, const QueryCodes& q,
                          const WindowScales& scales) {
  Scratch scratch(ctx.workspace);
  WindowArgs window{args, q, scales, mode == AttentionMode::kPerHead, qk_q_max, av_q_max, nullptr, nullptr, nullptr};
  const int64_t q_heads = static_cast<int64_t>(sequences) * args.num_heads;
  const int64_t kv_heads = static_cast<int64_t>(sequences) * args.kv.num_kv_heads;
  const int64_t count = q_heads + kv_heads + kv_heads * args.kv.head_dim;
  window.q_max = scratch.Take<uint32_t>(count);
  window.k_max = window.q_max + q_heads;
  window.v_max = window.k_max + kv_heads;
  STOCH_CUDA(cudaMemsetAsync(window.q_max, 0, static_cast<size_t>(count) * sizeof(uint32_t), ctx.stream));

  const dim3 chunks(static_cast<unsigned>((max_length + kChunkTokens - 1) / kChunkTokens),
                    static_cast<unsigned>(args.kv.num_kv_heads), static_cast<unsigned>(sequences));
  WindowMaxKernel<<<chunks, kThreads, 0, ctx.stream>>>(window);
  STOCH_CUDA_LAUNCH("WindowMaxKernel");
  WindowCodesKernel<<<chunks, kThreads, 0, ctx.stream>>>(window);
  STOCH_CUDA_LAUNCH("WindowCodesKernel");
  const int64_t vectors = static_cast<int64_t>(args.rows) * args.num_heads;
  const auto blocks = static_cast<unsigned>((vectors + kWarps - 1) / kWarps);
  if (window.per_head) {
    WindowQueryKernel<true><<<blocks, kThreads, 0, ctx.stream>>>(window);
    STOCH_CUDA_LAUNCH("WindowQueryKernel<max>");
  }
  WindowQueryKernel<false><<<blocks, kThreads, 0, ctx.stream>>>(window);
  STOCH_CUDA_LAUNCH("WindowQueryKernel");
}

}  // namespace stoch::cuda
