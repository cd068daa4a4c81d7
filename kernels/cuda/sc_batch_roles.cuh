// The roles of the small-batch wgmma kernel (sc_batch_wgmma.cu): producers that copy and consumers that multiply.
#pragma once

#include "kernels/cuda/sc_batch_outputs.cuh"
#include "kernels/cuda/sc_prefill_kernels.h"
#include "kernels/cuda/sc_prefill_operand.cuh"
#include "kernels/cuda/sc_prefill_ranks.cuh"
#include "kernels/cuda/sc_prefill_wgmma.cuh"

namespace stoch::cuda::batch {

inline constexpr int kGroups = 4;           // consumer warpgroups of a block, 64 weight rows each
inline constexpr int kRows = 64 * kGroups;  // weight rows of a block
inline constexpr int kConsumers = 128 * kGroups;
inline constexpr int kProducers = 4;  // warps
inline constexpr int kThreads = kConsumers + 32 * kProducers;
inline constexpr int kMaxStages = 15;
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = 112;  // 4 * 112 + 24 <= 5 * 96, what a launch of kThreads gets
inline constexpr int kRingHeader = 256;         // the barriers
inline constexpr int kCodeBytes = kRows * kTileDims;

struct BatchArgs {
  BatchOutputs outputs;
  ScStreams streams;
  int stages = 0;
  const uint16_t* ranks = nullptr;  // [masks][levels] where they are not DirectRanks
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;  // opaque to the compiler (sc_prefill_operand.cuh)
  // A block takes all chunks of a tile, one after another, and keeps y to itself. Without, sums of chunks go to memory.
  bool alone = false;
  GridBarrier barrier;
};

// Sizes of a stage: the streams of 16 dimensions and the codes of all rows.
template <int kWords, int kTokens_>
struct Geometry {
  static constexpr int kTokens = kTokens_;
  static constexpr int kUnitBytes = kTokens * 16;
  static constexpr int kStreamBytes = (4 * kWords + 2) * kUnitBytes;
  static constexpr int kStageBytes = (kStreamBytes + kCodeBytes + 127) / 128 * 128;
};

// Shared memory of a block, as addresses: barriers, the ring, the rank table.
struct Shared {
  uint32_t base;
  int stages;
  __device__ uint32_t full(int i) const { return base + 8 * static_cast<uint32_t>(i); }
  __device__ uint32_t empty(int i) const { return base + 8 * static_cast<uint32_t>(kMaxStages + i); }
  template <typename G>
  __device__ uint32_t stage(int i) const {
    return base + kRingHeader + static_cast<uint32_t>(i * G::kStageBytes);
  }
  template <typename G>
  __device__ uint32_t rank_table() const {  // from the start
    return kRingHeader + static_cast<uint32_t>(stages * G::kStageBytes);
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

// What a block works on at a time: one chunk of 256 rows of one task and a tile of tokens. Units are numbered chunk by
// chunk, so that blocks share streams through the second-level cache, with the token tile varying fastest, so that they
// share weights; alone: the chunks of a tile one after another. Each block takes a range of them.
struct Unit {
  int chunk;
  int group;  // first of the rows' groups
  int token_tile;
  int blocks;  // of 16 dimensions
};
struct UnitRange {
  int begin;
  int end;
  __device__ explicit UnitRange(const BatchArgs& args) {
    const int64_t tiles = int64_t{args.outputs.groups} / (kRows / kGroupRows) * args.streams.token_tiles;
    const int64_t each = args.alone ? args.streams.chunks : 1;
    const int64_t shares = args.alone ? tiles : tiles * args.streams.chunks;
    begin = static_cast<int>(blockIdx.x * shares / gridDim.x * each);
    end = static_cast<int>((blockIdx.x + 1) * shares / gridDim.x * each);
  }
};
__device__ __forceinline__ Unit UnitAt(const BatchArgs& args, int unit) {
  const ScStreams& s = args.streams;
  const int tiles = args.outputs.groups / (kRows / kGroupRows);
  Unit r;
  if (args.alone) {
    r.chunk = unit % s.chunks;
    unit /= s.chunks;
  }
  r.token_tile = unit % s.token_tiles;
  unit /= s.token_tiles;
  r.group = unit % tiles * (kRows / kGroupRows);
  if (!args.alone) r.chunk = unit / tiles;
  r.blocks = min(s.blocks_per_chunk, s.dim_blocks - r.chunk * s.blocks_per_chunk);
  return r;
}

// One thread of each of four warps: all copy codes of 64 rows, the first one streams and scales too. Issuing a bulk
// copy takes some 100 clocks beside busy consumers, so one warp for all of them would set the pace (measured: 1.25
// times the kernel).
template <typename G>
__device__ void Produce(const BatchArgs& args, const Shared& shared) {
  constexpr int kTiles = kRows / kTileRows / kProducers;  // of a producer
  const ScStreams& s = args.streams;
  const int producer = static_cast<int>(threadIdx.x - kConsumers) / 32;
  const int64_t row_tile_bytes = static_cast<int64_t>(s.dim_blocks) * kTileBytes;
  const UnitRange range(args);
  RingPlace place;
  for (int u = range.begin; u < range.end; ++u) {
    const Unit unit = UnitAt(args, u);
    const BatchTask& task = BatchTaskOf(args.outputs, unit.group);
    const int first_row = (unit.group - task.first_group) * kGroupRows;
    const int rows = max(min(kRows, task.rows_padded - first_row), 0);
    const int mine = min(max(rows / kTileRows - producer * kTiles, 0), kTiles);
    const uint32_t bytes = static_cast<uint32_t>(G::kStreamBytes + rows * kTileDims);
    const int begin = unit.chunk * s.blocks_per_chunk;
    const uint8_t* streams = s.data + s.block_offset(unit.token_tile, begin, 0);
    const uint8_t* codes =
        task.codes + (first_row / kTileRows + producer * kTiles) * row_tile_bytes + begin * int64_t{kTileBytes};
    for (int i = 0; i < unit.blocks; ++i, codes += kTileBytes) {
      for (int half = 0; half < s.halves; ++half, streams += G::kStreamBytes) {
        const uint32_t to = shared.stage<G>(place.slot);
        const uint32_t full = shared.full(place.slot);
        BarrierWait(shared.empty(place.slot), place.phase ^ 1);
        if (producer == 0) {
          BarrierExpect(full, bytes);
          BulkCopy(to, streams, G::kStreamBytes, full);
        }
        // Bytes may arrive before they are expected: the phase ends after the arrival that expects them.
        const uint32_t codes_to = to + G::kStreamBytes + static_cast<uint32_t>(producer * kTiles) * kTileBytes;
#pragma unroll
        for (int k = 0; k < kTiles; ++k) {
          if (k < mine) {
            BulkCopy(codes_to + static_cast<uint32_t>(k) * kTileBytes, codes + k * row_tile_bytes, kTileBytes, full);
          }
        }
        place.Next(shared.stages);
      }
    }
  }
}

__device__ __forceinline__ void BarrierArrive(uint32_t barrier, bool condition) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(barrier),
      "r"(static_cast<int>(condition))
      : "memory");
}
__device__ __forceinline__ uint32_t LoadSharedWord(uint32_t address) {
  uint32_t r;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(r) : "r"(address) : "memory");
  return r;
}

// Thermometers of every code where ranks are DirectRanks, complemented for negative ones: [code][copy] of 16 bytes.
// Eight lanes that look up at a time have a copy each, which is all banks once. One load and four moves replace ten
// instructions a weight, most of them on the one pipe that was busiest.
inline constexpr int kThermometerCopies = 8;
inline constexpr int kThermometerBytes = 256 * kThermometerCopies * 16;

__device__ __forceinline__ void FillThermometers(uint8_t* table) {
  for (uint32_t i = threadIdx.x; i < 256 * kThermometerCopies; i += kThreads) {
    const uint32_t code = i / kThermometerCopies;
    const uint32_t ranks = DirectRanks(code);
    reinterpret_cast<uint4*>(table)[i] =
        make_uint4(ThermometerWord<0>(code, ranks, 0, ~0u), ThermometerWord<0>(code, ranks, 1, ~0u),
                   ThermometerWord<0>(code, ranks, 2, ~0u), ThermometerWord<0>(code, ranks, 3, ~0u));
  }
}
// The thermometer of byte kByte of `codes`; `table`: shared address of this lane's copy.
template <int kByte>
__device__ __forceinline__ uint4 LoadThermometer(uint32_t table, uint32_t codes) {
  constexpr uint32_t kStride = 16 * kThermometerCopies;
  const uint32_t address = __dp4a(codes, kStride << (8 * kByte), table);
  uint4 r;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(address));
  return r;
}

template <int kWords, int kHalves, bool kTable, int kTokens, bool kAlone>
struct Consumer {
  using G = Geometry<kWords, kTokens>;
  static constexpr int kAccumulators = kTokens / 2;
  const BatchArgs& args;
  const Shared& shared;
  uint32_t table;  // shared address of the ranks of this lane's first dimension, or of its thermometers
  int warp;
  uint32_t minus_one;
  RingPlace place;
  uint32_t held = 0;  // barrier of the stage before
  int32_t acc[kAccumulators];
  float y[kAlone ? kAccumulators : 1];

  __device__ int lane() const { return static_cast<int>(threadIdx.x % 32); }
  // By one lane for its warp, as in prefill (sc_prefill_roles.cuh): what racecheck reports of codes that are read here
  // and copied over later is no race, because the wgmmas that a lane waits for use the codes of all lanes.
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
    uint4 ahead[2] = {};  // thermometers of the next pair
    if constexpr (!kTable) {
      ahead[0] = LoadThermometer<0>(table, codes[0]);
      ahead[1] = LoadThermometer<0>(table, codes[1]);
    }
    Unrolled<kWords>([&](auto pair) {
      uint32_t a[2][4];
      if constexpr (kTable) {
        StepOperand<kWords, 2 * pair>(a[0], codes, ranks, minus_one);
        StepOperand<kWords, 2 * pair + 1>(a[1], codes, ranks, minus_one);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          a[0][i] = ahead[i].x;
          a[0][2 + i] = ahead[i].y;
          a[1][i] = ahead[i].z;
          a[1][2 + i] = ahead[i].w;
        }
      }
      Pin(a[0]);
      Pin(a[1]);
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Wgmma<kTokens>::Bits(acc, a[i], Descriptor(low + (4 * pair + 2 * i) * (G::kUnitBytes >> 4)),
                             pair + i > 0 || !first);
      }
      WgmmaCommit();
      if constexpr (!kTable && pair + 1 < kWords) {
        ahead[0] = LoadThermometer<pair + 1>(table, codes[0]);
        ahead[1] = LoadThermometer<pair + 1>(table, codes[1]);
      }
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

  // Takes part in the hand-overs only: a warpgroup beyond the last row.
  __device__ void SkipChunk(int blocks) {
    for (int i = 0; i < blocks * kHalves; ++i) {
      BarrierWait(shared.full(place.slot), place.phase);
      held = shared.empty(place.slot);
      Release();
      place.Next(shared.stages);
    }
  }

  // The scales of a chunk for this thread's rows and tokens.
  struct Scales {
    float a[kTokens / 4];
    float b[2];
  };
  __device__ Scales LoadScales(const BatchTask& task, int chunk, int row, int token) const {
    const ScActivationView& view = args.outputs.a;
    Scales r;
#pragma unroll
    for (int n = 0; n < kTokens / 4; ++n) {
      const int t = min(token + n / 2 * 8 + n % 2, static_cast<int>(view.rows) - 1);
      r.a[n] = __ldg(view.scales + chunk * view.rows + t);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) r.b[i] = __ldg(task.scales + int64_t{chunk} * task.rows_padded + row + 8 * i);
    return r;
  }

  // A chunk of a tile that is this block's alone.
  __device__ void AddChunk(const Unit& unit, const BatchTask& task, int row) {
    const int token = unit.token_tile * kTokens + lane() % 4 * 2;
    const Scales scales = LoadScales(task, unit.chunk, row, token);
    if (unit.chunk == 0) {
#pragma unroll
      for (int k = 0; k < kAccumulators; ++k) y[k] = 0.0f;
    }
    MultiplyChunk(unit.blocks);
    Release();
#pragma unroll
    for (int k = 0; k < kAccumulators; ++k) {
      y[k] = y[k] + BipolarProduct(acc[k], args.outputs.gain, scales.a[k / 4 * 2 + k % 2], scales.b[k % 4 / 2]);
    }
    if (unit.chunk + 1 < args.streams.chunks) return;
#pragma unroll
    for (int k = 0; k < kAccumulators; k += 4) {
      BatchItem item;
      item.task = &task;
      item.row = row;
      item.token = token + k * 2;
      StoreOutputs(args.outputs, item, make_float4(y[k], y[k + 1], y[k + 2], y[k + 3]));
    }
  }

  __device__ void Run() {
    const UnitRange range(args);
    for (int u = range.begin; u < range.end; ++u) {
      const Unit unit = UnitAt(args, u);
      const BatchTask& task = BatchTaskOf(args.outputs, unit.group);
      const int first_row = (unit.group - task.first_group) * kGroupRows;
      if (first_row + warp / 4 * 64 >= task.rows_padded) {
        SkipChunk(unit.blocks);
        continue;
      }
      if constexpr (kAlone) {
        AddChunk(unit, task, first_row + warp * 16 + lane() / 4);
      } else {
        if (lane() == 0) {  // what CombineSums will want
          asm volatile("prefetch.global.L2 [%0];\n" ::"l"(
              task.scales + static_cast<int64_t>(unit.chunk) * task.rows_padded + first_row + warp * 16));
        }
        MultiplyChunk(unit.blocks);
        Release();
        const int first_item = (unit.group + warp) * args.outputs.tiles + unit.token_tile * (kTokens / kTileTokens);
#pragma unroll
        for (int n = 0; n < kTokens / kTileTokens; ++n) {
          StoreSums(args.outputs, unit.chunk, first_item + n, lane(), acc[4 * n], acc[4 * n + 1], acc[4 * n + 2],
                    acc[4 * n + 3]);
        }
      }
    }
  }
};

}  // namespace stoch::cuda::batch
