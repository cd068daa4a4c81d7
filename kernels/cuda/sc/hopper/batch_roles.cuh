// SPDX-License-Identifier: Apache-2.0
// The roles of the warp-specialized small-batch kernel (batch_wgmma.cu): a producer that copies and consumers that
// multiply.
#pragma once

#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/hopper/batch_work.cuh"
#include "kernels/cuda/sc/hopper/prefill_kernels.h"
#include "kernels/cuda/sc/hopper/ranks.cuh"
#include "kernels/cuda/sc/tensor_core/operand.cuh"

namespace stoch::cuda::batch {

// The producer, one thread: copies the streams of all runs of the block into the ring, stage by stage.
template <typename G>
__device__ void Produce(const BatchArgs& args, const Shared& shared) {
  const ScStreams& s = args.streams;
  RingPlace place;
  WaitForPrevious();
  for (Work work(args); !work.done();) {
    const Run run = work.Take(args);
    const uint8_t* streams = s.data + s.block_offset(run.token_tile, run.chunk * s.blocks_per_chunk, 0);
    for (int chunk = run.chunk; chunk < run.end_chunk; ++chunk) {
      for (int left = BlocksOf(s, chunk); left > 0; left -= G::kBlocks) {
        const uint32_t full = shared.full(place.slot);
        const auto bytes = static_cast<uint32_t>(min(left, G::kBlocks) * (G::kStageBytes / G::kBlocks));
        BarrierWait(shared.empty(place.slot), place.phase ^ 1);
        BarrierExpect(full, bytes);
        BulkCopy(shared.stage<G>(place.slot), streams, bytes, full);
        streams += bytes;
        place.Next(shared.stages);
      }
    }
  }
}

// The thermometer table in shared memory, [256 codes][8 copies] of 16 bytes: the 128-bit thermometer of each code,
// complemented if the code is negative, for ranks that are DirectRanks. Shared memory serves eight lanes at a time,
// each of which reads a copy of its own, so there are no bank conflicts. One load and four moves replace ten
// instructions a weight, most of them on the busiest pipe.
inline constexpr int kThermometerCopies = 8;
inline constexpr int kThermometerBytes = 256 * kThermometerCopies * 16;

// Fills the thermometer table, by all threads of the block. The caller's next barrier makes it visible.
__device__ __forceinline__ void FillThermometers(uint8_t* table) {
  for (uint32_t i = threadIdx.x; i < 256 * kThermometerCopies; i += kThreads) {
    const uint32_t code = i / kThermometerCopies;
    const PackedRanks ranks = DirectRanks<4>(code);
    reinterpret_cast<uint4*>(table)[i] =
        make_uint4(ThermometerWord<0, 0, 4>(code, ranks, ~0u), ThermometerWord<0, 1, 4>(code, ranks, ~0u),
                   ThermometerWord<0, 2, 4>(code, ranks, ~0u), ThermometerWord<0, 3, 4>(code, ranks, ~0u));
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

// A consumer thread. kOwners: some blocks own tiles, the others help (BatchArgs::owners). kMixed: every (chunk, token)
// has a gain of its own. The other template arguments are those of ScBatchWgmmaKernel.
template <int kWords, int kHalves, bool kTable, int kTokens, bool kOwners, bool kMixed>
struct Consumer {
  using G = Geometry<kWords, kHalves, kTokens>;
  static constexpr int kAccumulators = kTokens / 2;
  const BatchArgs& args;
  const Shared& shared;
  uint32_t table;  // shared address of the ranks of this lane's first dimension (kTable), else of its thermometer copy
  int warp;        // index of the consumer warp
  uint32_t minus_one;  // ~0u as a value that the compiler does not know
  RingPlace place;     // stage that is multiplied next
  uint4 ahead[2];      // thermometers that the next looked-up pair of steps needs, of rows lane / 4 and 8 + lane / 4
  // Bit p: the thermometers of pair p of wgmma steps are looked up; those of the other pairs are made by shifts.
  // Look-ups compete with the tensor cores for shared memory, shifts load the busiest pipe: either kind alone is slower
  // (measured).
  static constexpr uint32_t kLooked = kTable ? 0 : 0b0011;
  // The first looked-up pair after kPair; kWords + p stands for pair p of the next half or block.
  template <int kPair>
  static constexpr int NextLooked() {
    for (int p = kPair + 1; p < 2 * kWords; ++p) {
      if (kLooked >> (p % kWords) & 1) return p;
    }
    return 0;
  }
  int32_t acc[kAccumulators];            // wgmma accumulators: integer sums of the current chunk
  float y[kOwners ? kAccumulators : 1];  // outputs of a tile that this block owns

  __device__ int lane() const { return static_cast<int>(threadIdx.x % 32); }

  // Loads the thermometers of pair kPair of steps into `ahead`.
  template <int kPair>
  __device__ __forceinline__ void LookAhead(const uint32_t (&codes)[2]) {
    if constexpr (!kTable) {
      ahead[0] = LoadThermometer<kPair>(table, codes[0]);
      ahead[1] = LoadThermometer<kPair>(table, codes[1]);
    }
  }

  // Adds one half of a block of 16 dimensions to acc, in kWords pairs of wgmma steps; while one pair multiplies, the
  // operands of the next pair are made. low: the low word of the wgmma descriptor of the streams. mask: index of the
  // block's first mask in the rank table. following: codes of the next half or block, for which the last looked-up
  // pair looks ahead. first: acc is overwritten, not added to.
  __device__ __forceinline__ void MultiplyPart(const uint32_t (&codes)[2], const uint32_t (&following)[2], uint32_t low,
                                               int mask, bool first) {
    std::conditional_t<kTable, ApartRanks, PackedRanks> ranks[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kTable) {
        ranks[i] = TableRanks(table + static_cast<uint32_t>(mask * 128), codes[i]);
      } else {
        ranks[i] = DirectRanks<kWords>(codes[i]);
      }
    }
    const uint64_t streams = DescriptorToAddTo(low);
    Unrolled<kWords>([&](auto pair) {
      uint32_t a[3][4];
      if constexpr ((kLooked >> pair & 1) == 0) {
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
      if constexpr (pair + 1 == kWords) {
        CorrectionOperand(a[2], codes, ranks);
        Pin(a[2]);
      }
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Wgmma<kTokens>::Bits(acc, a[i], streams + (4 * pair + 2 * i) * (G::kUnitBytes >> 4), pair + i > 0 || !first);
      }
      if constexpr (pair + 1 == kWords) {
        Wgmma<kTokens>::Bytes(acc, a[2], streams + 4 * kWords * (G::kUnitBytes >> 4));
      }
      WgmmaCommit();
      if constexpr (kLooked >> pair & 1) {
        constexpr int kNext = NextLooked<pair>();
        LookAhead<kNext % kWords>(kNext < kWords ? codes : following);
      }
      WgmmaWait<1>(acc);
    });
  }

  // Waits for the next stage and adds it to acc. `block` is the index in the chunk of the stage's first block of 16
  // dimensions. Blocks past the end of the chunk have codes 0, which add nothing, whatever the stage still holds.
  // following: the first codes of the next stage.
  __device__ __forceinline__ void MultiplyStage(const uint32_t (&codes)[G::kBlocks][2], const uint32_t (&following)[2],
                                                int block) {
    BarrierWait(shared.full(place.slot), place.phase);
    const uint32_t low = Uniform(DescriptorLow<G::kUnitBytes>(shared.stage<G>(place.slot)));
    const int masks = max(args.masks, 16);
    const auto multiply = [&](auto b, const uint32_t(&next)[2]) {
      Unrolled<kHalves>([&](auto half) {
        const int mask = half * masks + (((block + b) * 16) & (masks - 1));
        MultiplyPart(codes[b], half + 1 < kHalves ? codes[b] : next, low + (b * kHalves + half) * (G::kPartBytes >> 4),
                     mask, b + half == 0 && block == 0);
      });
    };
    Unrolled<G::kBlocks>([&](auto b) {
      if constexpr (b + 1 < G::kBlocks) {
        multiply(b, codes[b + 1]);
      } else {
        multiply(b, following);
      }
    });
    WgmmaWait<0>(acc);
    // One lane releases the stage for its warp: the wgmmas that it waited for belong to all lanes of the warp.
    BarrierArrive(shared.empty(place.slot), lane() == 0);
    place.Next(shared.stages);
  }

  // acc = the integer sums of a chunk of `blocks` blocks of 16 dimensions.
  __device__ __forceinline__ void MultiplyChunk(CodeReader<G::kBlocks>& reader, int blocks) {
    for (int block = 0; block < blocks; block += G::kBlocks) {
      uint32_t codes[G::kBlocks][2];
#pragma unroll
      for (int b = 0; b < G::kBlocks; ++b) {
        codes[b][0] = reader.codes[b][0];
        codes[b][1] = reader.codes[b][1];
      }
      reader.Next();
      MultiplyStage(codes, reader.codes[0], block);
    }
  }

  // Loads the scales of this lane's rows and tokens, one chunk after another.
  struct Scales {
    const float* from_a;         // address of the token scales of the next chunk
    const float* from_b;         // address of the row scales of the next chunk
    const float* from_gain;      // address of the gains of the next chunk; null without kMixed
    int64_t stride_a, stride_b;  // floats from chunk to chunk: of token scales and gains (a), of row scales (b)
    float2 a[kTokens / 8];       // scales of this lane's two tokens in each tile of 8
    float2 gains[kMixed ? kTokens / 8 : 1];  // gains of the tokens of `a`
    float b[2];                              // scales of rows lane / 4 and 8 + lane / 4

    __device__ Scales(const ScStreams& s, const ScKernelTask& task, const Run& run, int row, int token)
        : from_a(s.scales + static_cast<int64_t>(run.chunk) * s.tokens_padded() + token),
          // Padding rows may take any scale, since their outputs are not stored.
          from_b(task.scales + static_cast<int64_t>(run.chunk) * task.rows_padded + min(row, task.rows_padded - 9)),
          from_gain(kMixed ? s.gains + (from_a - s.scales) : nullptr),
          stride_a(s.tokens_padded()),
          stride_b(task.rows_padded) {}
    // Loads the scales of the next chunk.
    __device__ __forceinline__ void Next() {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) a[n] = __ldg(reinterpret_cast<const float2*>(from_a + 8 * n));
      if constexpr (kMixed) {
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) gains[n] = __ldg(reinterpret_cast<const float2*>(from_gain + 8 * n));
        from_gain += stride_a;
      }
      b[0] = __ldg(from_b);
      b[1] = __ldg(from_b + 8);
      from_a += stride_a;
      from_b += stride_b;
    }
    // The scaled product of accumulator k. `gain` is used without kMixed.
    __device__ __forceinline__ float Product(int32_t sum, int k, float gain) const {
      if constexpr (kMixed) gain = k % 2 == 0 ? gains[k / 4].x : gains[k / 4].y;
      return BipolarProduct(sum, gain, k % 2 == 0 ? a[k / 4].x : a[k / 4].y, b[k % 4 / 2]);
    }
  };

  // Index of the first item (BatchOutputs::partials) of this warp's 16 rows in the tile of a run.
  __device__ int ItemOf(const Run& run) const {
    return (run.group + warp) * args.outputs.tiles + run.token_tile * (kTokens / kTileTokens);
  }

  // By an owner block: makes the outputs of a tile. Multiplies and adds the chunks of the run in order, then adds the
  // partials of the last args.helped chunks, which helper blocks store meanwhile. `row`: this lane's first row in the
  // task.
  __device__ __forceinline__ void AddChunks(CodeReader<G::kBlocks>& reader, const Run& run, const ScKernelTask& task,
                                            int row) {
    const int token = run.token_tile * kTokens + lane() % 4 * 2;
    Scales scales(args.streams, task, run, row, token);
#pragma unroll
    for (int k = 0; k < kAccumulators; ++k) y[k] = 0.0f;
    for (int chunk = run.chunk; chunk < run.end_chunk; ++chunk) {
      scales.Next();
      MultiplyChunk(reader, BlocksOf(args.streams, chunk));
#pragma unroll
      for (int k = 0; k < kAccumulators; ++k) y[k] = y[k] + scales.Product(acc[k], k, args.outputs.gain);
    }
    if (args.helped > 0) {
      int* flag = args.flags + run.tile * (kConsumers / 32) + warp;
      int there;
      do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(there) : "l"(flag) : "memory");
      } while (there < args.helped);
      __syncwarp();
      if (lane() == 0) *flag = 0;
#pragma unroll 2
      for (int chunk = 0; chunk < args.helped; ++chunk) {
        scales.Next();
        const int64_t first =
            (int64_t{chunk} * args.outputs.groups * args.outputs.tiles + ItemOf(run)) * kWarp + lane();
#pragma unroll
        for (int k = 0; k < kAccumulators; k += 4) {
          const int4 sums = LoadPartials(args.outputs, first + k / 4 * kWarp);
          y[k] = y[k] + scales.Product(sums.x, k, args.outputs.gain);
          y[k + 1] = y[k + 1] + scales.Product(sums.y, k + 1, args.outputs.gain);
          y[k + 2] = y[k + 2] + scales.Product(sums.z, k + 2, args.outputs.gain);
          y[k + 3] = y[k + 3] + scales.Product(sums.w, k + 3, args.outputs.gain);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kAccumulators; k += 4) {
      BatchItem item;
      item.task = &task;
      item.row = row;
      item.token = token + k * 2;
      StoreOutputs(args.outputs, item, make_float4(y[k], y[k + 1], y[k + 2], y[k + 3]));
    }
  }

  // Multiplies the chunks of a run and stores their partials in device memory; a helper block then releases them to the
  // tile's owner. `row`: this lane's first row in the task.
  __device__ __forceinline__ void LeavePartials(CodeReader<G::kBlocks>& reader, const Run& run,
                                                const ScKernelTask& task, int row) {
    const int first_chunk = kOwners ? args.streams.chunks - args.helped : 0;
    for (int chunk = run.chunk; chunk < run.end_chunk; ++chunk) {
      // The block that reduces the partials will read these scales.
      if (lane() == 0 && row < task.rows_padded) {
        PrefetchL2Line(task.scales + static_cast<int64_t>(chunk) * task.rows_padded + row);
      }
      MultiplyChunk(reader, BlocksOf(args.streams, chunk));
#pragma unroll
      for (int n = 0; n < kTokens / kTileTokens; ++n) {
        StorePartials(args.outputs, chunk - first_chunk, ItemOf(run) + n, lane(), acc[4 * n], acc[4 * n + 1],
                      acc[4 * n + 2], acc[4 * n + 3]);
      }
    }
    if constexpr (kOwners) {
      __syncwarp();
      if (lane() == 0) {
        asm volatile(
            "red.release.gpu.global.add.s32 [%0], %1;\n" ::"l"(args.flags + run.tile * (kConsumers / 32) + warp),
            "r"(run.end_chunk - run.chunk)
            : "memory");
      }
    }
  }

  // The consumer's main loop over the runs of the block.
  __device__ __forceinline__ void Consume() {
    // Loads weights before WaitForPrevious: they depend on no earlier kernel.
    CodeReader<G::kBlocks> reader(args, warp);
    WaitForPrevious();
    LookAhead<0>(reader.codes[0]);
    for (Work work(args); !work.done();) {
      const Run run = work.Take(args);
      const ScKernelTask& task = BatchTaskOf(args.outputs, run.group);
      const int row = (run.group - task.first_block) * kGroupRows + warp * 16 + lane() / 4;
      if (kOwners && static_cast<int>(blockIdx.x) < args.owners) {
        AddChunks(reader, run, task, row);
      } else {
        LeavePartials(reader, run, task, row);
      }
    }
  }
};

}  // namespace stoch::cuda::batch
