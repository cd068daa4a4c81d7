// The roles of the small-batch wgmma kernel (sc_batch_wgmma.cu): a producer warp and consumers that also combine.
#pragma once

#include "kernels/cuda/finite.h"
#include "kernels/cuda/sc_batch.h"
#include "kernels/cuda/sc_prefill_kernels.h"
#include "kernels/cuda/sc_prefill_operand.cuh"
#include "kernels/cuda/sc_prefill_ranks.cuh"
#include "kernels/cuda/sc_prefill_wgmma.cuh"
#include "kernels/math/elementary.h"

namespace stoch::cuda::batch {

inline constexpr int kGroups = 4;           // consumer warpgroups of a block, 64 weight rows each
inline constexpr int kRows = 64 * kGroups;  // weight rows of a block
inline constexpr int kConsumers = 128 * kGroups;
inline constexpr int kThreads = kConsumers + 128;
inline constexpr int kMaxCluster = kMaxBatchCluster;
inline constexpr int kMaxStages = 12;
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = 112;  // 4 * 112 + 24 <= 5 * 96, what a launch of kThreads gets
inline constexpr int kRingHeader = 256;         // the barriers
inline constexpr int kCodeBytes = kRows * kTileDims;

struct BatchTask {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int rows = 0;
  int rows_padded = 0;
  int first_tile = 0;  // of this task's rows among the row tiles of all tasks
  bool add = false;
};

struct BatchArgs {
  BatchTask tasks[kMaxBatchTasks];
  int task_count = 0;
  ScStreams streams;
  int row_tiles = 0;  // of all tasks
  int cluster = 1;    // blocks of a cluster: 1, 2, 4 or 8
  int stages = 0;
  float gain = 0;
  const uint16_t* ranks = nullptr;  // [masks][levels] where they are not DirectRanks
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;  // opaque to the compiler (sc_prefill_operand.cuh)
  FiniteReporter reporter;
};

// Sizes of a stage: the streams of 16 dimensions, the codes of all rows, and in the last stage of a chunk its scales.
// And of the products of a chunk, [token][row] with rows far enough apart that a warp's stores fill all banks.
template <int kWords, int kTokens_>
struct Geometry {
  static constexpr int kTokens = kTokens_;
  static constexpr int kUnitBytes = kTokens * 16;
  static constexpr int kStreamBytes = (4 * kWords + 2) * kUnitBytes;
  static constexpr int kTokenScaleBytes = kTokens * 4;
  static constexpr int kStageBytes = (kStreamBytes + kCodeBytes + kTokenScaleBytes + kRows * 4 + 127) / 128 * 128;
  static constexpr int kProductStride = (kRows + 4) * 4;
  static constexpr int kProductBytes = kTokens * kProductStride;
};

// Shared memory of a block, as addresses: barriers, two buffers of products, the ring, the rank table.
struct Shared {
  uint32_t base;
  int stages;
  uint32_t product_bytes;
  __device__ uint32_t full(int i) const { return base + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t empty(int i) const { return base + 8 * static_cast<uint32_t>(kMaxStages + i); }
  // Products of a buffer: written by all blocks of the cluster, read by all of them.
  __device__ uint32_t written(int i) const { return base + 8 * static_cast<uint32_t>(2 * kMaxStages + i); }
  __device__ uint32_t read(int i) const { return base + 8 * static_cast<uint32_t>(2 * kMaxStages + 2 + i); }
  __device__ uint32_t products(int i) const { return base + kRingHeader + static_cast<uint32_t>(i) * product_bytes; }
  template <typename G>
  __device__ uint32_t stage(int i) const {
    return base + kRingHeader + 2 * G::kProductBytes + static_cast<uint32_t>(i * G::kStageBytes);
  }
  template <typename G>
  __device__ uint32_t rank_table() const {  // from the start
    return kRingHeader + 2 * G::kProductBytes + static_cast<uint32_t>(stages * G::kStageBytes);
  }
};

// The ring as one thread walks it.
struct RingPlace {
  int slot = 0;
  uint32_t phase = 0;
  __device__ void Next(int stages) {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// A tile: 256 rows of one task x one tile of tokens. Token tiles vary fastest: clusters that run together share
// weights.
struct Tile {
  const BatchTask* task;
  int first_row;
  int token_tile;
};
__device__ __forceinline__ Tile TileAt(const BatchArgs& args, int tile) {
  const int row_tile = tile / args.streams.token_tiles;
  int i = 0;
  while (i + 1 < args.task_count && row_tile >= args.tasks[i + 1].first_tile) ++i;
  return {&args.tasks[i], (row_tile - args.tasks[i].first_tile) * kRows, tile % args.streams.token_tiles};
}

template <typename G>
__device__ void Produce(const BatchArgs& args, const Shared& shared) {
  const ScStreams& s = args.streams;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int rank = static_cast<int>(ClusterRank());
  const int tiles = args.row_tiles * s.token_tiles;
  const int clusters = static_cast<int>(gridDim.x) / args.cluster;
  RingPlace place;
  for (int t = static_cast<int>(blockIdx.x) / args.cluster; t < tiles; t += clusters) {
    const Tile tile = TileAt(args, t);
    const int rows = max(min(kRows, tile.task->rows_padded - tile.first_row), 0);
    for (int chunk = rank; chunk < s.chunks; chunk += args.cluster) {
      const int begin = chunk * s.blocks_per_chunk;
      const int end = min(begin + s.blocks_per_chunk, s.dim_blocks);
      for (int i = 0; i < (end - begin) * s.halves; ++i) {
        const int block = begin + i / s.halves;
        const bool last = i + 1 == (end - begin) * s.halves;
        const uint32_t to = shared.stage<G>(place.slot);
        const uint32_t full = shared.full(place.slot);
        BarrierWait(shared.empty(place.slot), place.phase ^ 1);
        if (lane == 0) {
          BarrierExpect(full, static_cast<uint32_t>(G::kStreamBytes + rows * kTileDims +
                                                    (last ? G::kTokenScaleBytes + rows * 4 : 0)));
        }
        __syncwarp();
        if (lane < rows / kTileRows) {
          const int64_t from = static_cast<int64_t>(tile.first_row / kTileRows + lane) * s.dim_blocks + block;
          BulkCopy(to + G::kStreamBytes + static_cast<uint32_t>(lane * kTileBytes),
                   tile.task->codes + from * kTileBytes, kTileBytes, full);
        } else if (lane == kRows / kTileRows) {
          BulkCopy(to, s.data + s.block_offset(tile.token_tile, block, i % s.halves), G::kStreamBytes, full);
        } else if (last && lane == kRows / kTileRows + 1) {
          const uint32_t scales = to + G::kStreamBytes + kCodeBytes;
          BulkCopy(scales, s.scales + static_cast<int64_t>(chunk) * s.tokens_padded() + tile.token_tile * G::kTokens,
                   G::kTokenScaleBytes, full);
          BulkCopy(scales + G::kTokenScaleBytes,
                   tile.task->scales + static_cast<int64_t>(chunk) * tile.task->rows_padded + tile.first_row,
                   static_cast<uint32_t>(rows * 4), full);
        }
        place.Next(shared.stages);
      }
    }
  }
}

// Waits for what other blocks of the cluster wrote before they arrived.
__device__ __forceinline__ void ClusterBarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\nbra again;\nfinished:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void ClusterBarrierArrive(uint32_t remote) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(remote) : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier, bool condition) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(barrier),
      "r"(static_cast<int>(condition))
      : "memory");
}
__device__ __forceinline__ float2 LoadCluster2(uint32_t address) {
  float2 r;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];\n" : "=f"(r.x), "=f"(r.y) : "r"(address) : "memory");
  return r;
}
__device__ __forceinline__ void StoreShared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ uint32_t LoadSharedWord(uint32_t address) {
  uint32_t r;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(r) : "r"(address) : "memory");
  return r;
}

template <int kWords, int kHalves, bool kTable, int kTokens>
struct Consumer {
  using G = Geometry<kWords, kTokens>;
  static constexpr int kAccumulators = kTokens / 2;
  // Pairs of rows that a thread adds up where it has no neighbours.
  static constexpr int kMaxPairs = kTokens * kRows / 2 / kConsumers;

  const BatchArgs& args;
  const Shared& shared;
  uint32_t table;  // shared address of the ranks of this lane's first dimension, for TableRanks
  int warp;
  uint32_t minus_one;
  RingPlace place;
  uint32_t held = 0;  // barrier of the stage before
  int32_t acc[kAccumulators];
  float2 y[kMaxPairs];

  __device__ int lane() const { return static_cast<int>(threadIdx.x % 32); }
  __device__ void Release(bool condition = true) const { BarrierArrive(held, condition && lane() == 0); }

  // Adds one stage to acc. kWords pairs of steps: while one pair multiplies, the next one's operands are made.
  __device__ void MultiplyStage(bool first, int half, int block) {
    const uint32_t stage = shared.stage<G>(place.slot);
    BarrierWait(shared.full(place.slot), place.phase);
    const uint32_t codes_at =
        stage + G::kStreamBytes + static_cast<uint32_t>(warp) * 16 * kTileDims + static_cast<uint32_t>(lane()) * 4;
    const uint32_t codes[2] = {LoadSharedWord(codes_at), LoadSharedWord(codes_at + 8 * kTileDims)};
    uint32_t ranks[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kTable) {
        const int masks = max(args.masks, 16);
        ranks[i] =
            TableRanks(table + static_cast<uint32_t>((half * masks + ((block * 16) & (masks - 1))) * 128), codes[i]);
      } else {
        ranks[i] = DirectRanks(codes[i]);
      }
    }
    const uint32_t low = Uniform(DescriptorLow<G::kUnitBytes>(stage));
    Unrolled<kWords>([&](auto pair) {
      uint32_t a[2][4];
      StepOperand<kWords, 2 * pair>(a[0], codes, ranks, minus_one);
      StepOperand<kWords, 2 * pair + 1>(a[1], codes, ranks, minus_one);
      Pin(a[0]);
      Pin(a[1]);
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Wgmma<kTokens>::Bits(acc, a[i], Descriptor(low + (4 * pair + 2 * i) * (G::kUnitBytes >> 4)),
                             pair + i > 0 || !first);
      }
      WgmmaCommit();
      WgmmaWait<1>(acc);
      if constexpr (pair == 0) Release(!first);
    });
    uint32_t a[4];
    CorrectionOperand(a, codes, ranks);
    Pin(a);
    WgmmaFence();
    Wgmma<kTokens>::Bytes(acc, a, Descriptor(low + 4 * kWords * (G::kUnitBytes >> 4)));
    WgmmaCommit();
    WgmmaWait<1>(acc);
    held = shared.empty(place.slot);
    place.Next(shared.stages);
  }

  // acc = the integer sums of a chunk.
  __device__ void MultiplyChunk(int blocks) {
    for (int block = 0; block < blocks; ++block) {
      Unrolled<kHalves>([&](auto half) { MultiplyStage(block == 0 && half == 0, half, block); });
    }
    WgmmaWait<0>(acc);
  }

  // The chunk's products into this block's buffer, with the scales of the stage before.
  __device__ void StoreProducts(int buffer) {
    const int previous = (place.slot == 0 ? shared.stages : place.slot) - 1;
    const uint32_t scales = shared.stage<G>(previous) + G::kStreamBytes + kCodeBytes;
    const uint32_t row = static_cast<uint32_t>(warp * 16 + lane() / 4) * 4;
    const uint32_t token = static_cast<uint32_t>(lane() % 4 * 2);
    const float scale_b[2] = {LoadShared(scales + G::kTokenScaleBytes + row),
                              LoadShared(scales + G::kTokenScaleBytes + row + 32)};
    float2 scale_a[kTokens / 8];
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) scale_a[n] = LoadShared2(scales + (static_cast<uint32_t>(n) * 8 + token) * 4);
    Release();
    const uint32_t to = shared.products(buffer) + token * G::kProductStride + row;
#pragma unroll
    for (int k = 0; k < kAccumulators; ++k) {
      const float scale = __fmul_rn(k % 2 == 0 ? scale_a[k / 4].x : scale_a[k / 4].y, scale_b[k % 4 / 2]);
      StoreShared(to + (k / 4 * 8 + k % 2) * G::kProductStride + k % 4 / 2 * 32,
                  __fmul_rn(__fmul_rn(static_cast<float>(acc[k]), args.gain), scale));
    }
  }

  // All warps of all blocks count.
  __device__ void ArriveEverywhere(uint32_t barrier) const {
    __syncwarp();
    if (lane() < args.cluster) ClusterBarrierArrive(MapToCluster(barrier, static_cast<uint32_t>(lane())));
  }

  // Pair i of this thread: token (of the tile) and row (of the 256), or false.
  __device__ bool PairAt(int i, int* token, int* row) const {
    const int tokens = kTokens / args.cluster;  // of this block
    const int index = static_cast<int>(threadIdx.x) + i * kConsumers;
    *token = static_cast<int>(ClusterRank()) * tokens + index / (kRows / 2);
    *row = index % (kRows / 2) * 2;
    return index < tokens * (kRows / 2);
  }

  // Adds the chunks of a round in order.
  __device__ void Combine(int buffer, uint32_t parity, int chunks) {
    ClusterBarrierWait(shared.written(buffer), parity);
    const uint32_t mine = shared.products(buffer);
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
      int token, row;
      if (!PairAt(i, &token, &row)) break;
      const uint32_t at = mine + static_cast<uint32_t>(token * G::kProductStride + row * 4);
      float2 p[kMaxCluster];
#pragma unroll
      for (int q = 0; q < kMaxCluster; ++q) {
        if (q < chunks) p[q] = LoadCluster2(MapToCluster(at, static_cast<uint32_t>(q)));
      }
#pragma unroll
      for (int q = 0; q < kMaxCluster; ++q) {
        if (q < chunks) {
          y[i].x = __fadd_rn(y[i].x, p[q].x);
          y[i].y = __fadd_rn(y[i].y, p[q].y);
        }
      }
    }
    ArriveEverywhere(shared.read(buffer));
  }

  __device__ void Write(const Tile& tile) {
#pragma unroll
    for (int i = 0; i < kMaxPairs; ++i) {
      int token, row;
      if (!PairAt(i, &token, &row)) break;
      token += tile.token_tile * kTokens;
      row += tile.first_row;
      const float value[2] = {y[i].x, y[i].y};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (token >= args.streams.tokens || row + j >= tile.task->rows) continue;
        float* to = tile.task->out + token * tile.task->out_stride + row + j;
        const float sum = tile.task->add ? __fadd_rn(*to, value[j]) : value[j];
        if (!IsFinite(sum)) args.reporter.Report();
        *to = sum;
      }
    }
  }

  __device__ void Run() {
    const ScStreams& s = args.streams;
    const int rank = static_cast<int>(ClusterRank());
    const int tiles = args.row_tiles * s.token_tiles;
    const int clusters = static_cast<int>(gridDim.x) / args.cluster;
    int count = 0;  // rounds so far
    const auto combine = [&](int round, int first_chunk) {
      Combine(round & 1, static_cast<uint32_t>(round >> 1 & 1), min(args.cluster, s.chunks - first_chunk));
    };
    for (int t = static_cast<int>(blockIdx.x) / args.cluster; t < tiles; t += clusters) {
      const Tile tile = TileAt(args, t);
      const bool has_rows = tile.first_row + warp / 4 * 64 < tile.task->rows_padded;
#pragma unroll
      for (int i = 0; i < kMaxPairs; ++i) y[i] = make_float2(0.0f, 0.0f);
      for (int first = 0; first < s.chunks; first += args.cluster, ++count) {
        const int chunk = first + rank;
        if (chunk < s.chunks) {
          const int blocks = min(s.blocks_per_chunk, s.dim_blocks - chunk * s.blocks_per_chunk);
          if (has_rows) {
            MultiplyChunk(blocks);
            BarrierWait(shared.read(count & 1), static_cast<uint32_t>(~count >> 1 & 1));
            StoreProducts(count & 1);
          } else {  // beyond the last row: takes part in the hand-overs only
            for (int i = 0; i < blocks * kHalves; ++i) {
              BarrierWait(shared.full(place.slot), place.phase);
              held = shared.empty(place.slot);
              Release();
              place.Next(shared.stages);
            }
          }
        }
        ArriveEverywhere(shared.written(count & 1));
        if (first > 0) combine(count - 1, first - args.cluster);
      }
      combine(count - 1, (s.chunks - 1) / args.cluster * args.cluster);
      Write(tile);
    }
  }
};

}  // namespace stoch::cuda::batch
