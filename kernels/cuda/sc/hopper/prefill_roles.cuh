// SPDX-License-Identifier: Apache-2.0
// The consumers of the prefill kernel (prefill_wgmma.cuh): they multiply the stages of the ring (prefill_ring.cuh) by
// thermometers of weights, made in registers, and write the outputs.
#pragma once

#include "kernels/cuda/device/hopper.cuh"
#include "kernels/cuda/sc/hopper/prefill_partials.cuh"
#include "kernels/cuda/sc/hopper/prefill_ring.cuh"
#include "kernels/cuda/sc/hopper/ranks.cuh"
#include "kernels/cuda/sc/tensor_core/operand.cuh"

namespace stoch::cuda::prefill {

// A consumer thread. Every instruction of a stage counts: while the tensor cores are busy, the other pipes get less
// than half of the issue slots (measured: 15 shifts fit next to one m64n128k256). So whatever a stage needs beyond its
// thermometers is kept in registers or known at compile time. The template arguments are those of PrefillWgmmaKernel.
template <int kWords, int kHalves, bool kTable, bool kMixed, typename Args>
struct Consumer {
  const Args& args;
  Ring ring;
  uint32_t table;              // shared address: with kTable the ranks of this lane's first dimension
  int warp;                    // index of the consumer warp
  uint32_t remote;             // cluster address of the barriers of block lane % kPrefillCluster
  bool releases;               // whether this lane releases stages: lanes 0..kPrefillCluster-1, one for each block
  uint32_t minus_one;          // ~0u as a value that the compiler does not know
  uint32_t held = 0;           // byte offset of the barrier of the previous stage, which is not released yet
  int32_t acc[kAccumulators];  // wgmma accumulators: integer sums of the current chunk
  float y[kAccumulators];      // outputs of the current tile

  // Shared address of a stage.
  __device__ uint32_t stage(int slot) const {
    return ring.base + kRingHeader + static_cast<uint32_t>(slot * kStageBytes<kWords, kMixed>);
  }
  __device__ int previous_slot() const { return (ring.slot == 0 ? ring.stages : ring.slot) - 1; }

  // Releases a stage to the producers of both blocks: one lane arrives at each block's empty barrier for its warp. No
  // __syncwarp is needed before, because the reads of all lanes (of scales, in ScaleChunk) are single instructions of a
  // warp that wgmma.wait keeps converged, ahead of the arrive. racecheck does not know this order between lanes and
  // reports a race with the next bulk copy to the stage; it does so with a __syncwarp before the arrive, too.
  __device__ void Release(uint32_t barrier_offset) const {
    BarrierArriveRemote<8 * kMaxStages>(remote + barrier_offset, releases);
  }
  // The hand-over of PrefillArgs::stagger: before its first stage of a chunk a warpgroup waits in Follow until the
  // warpgroup before it has called Lead after that warpgroup's first stage.
  __device__ void Follow() const {
    if (args.stagger && warp >= 4) NamedWait(static_cast<uint32_t>(warp / 4), 256);
  }
  __device__ void Lead() const {
    NamedArrive(static_cast<uint32_t>(warp / 4 + 1), 256, args.stagger && warp + 4 < kConsumers / 32);
  }

  // Takes a chunk of `blocks` blocks of 16 dimensions for a warpgroup whose rows are past rows_padded: it only waits
  // for stages and releases them.
  __device__ void SkipChunk(int blocks) {
    Follow();
    for (int i = 0; i < blocks * kHalves; ++i) {
      BarrierWait(ring.full(ring.slot), ring.phase);
      Release(8 * static_cast<uint32_t>(ring.slot));
      ring.Next();
      if (i == 0) Lead();
    }
  }

  // The accumulators of the first 64 * kWidth tokens.
  template <int kWidth>
  __device__ int32_t (&Accumulators())[32 * kWidth] {
    return reinterpret_cast<int32_t(&)[32 * kWidth]>(acc);
  }

  // Adds one stage to acc, for 64 * kWidth tokens, in kWords pairs of wgmma steps; while one pair multiplies, the
  // operands of the next pair are made. kFirst: the stage is the first of a chunk, so acc is overwritten.
  template <int kWidth, bool kFirst>
  __device__ __forceinline__ void MultiplyStage(const uint32_t (&codes)[2], const PackedRanks (&ranks)[2]) {
    const uint32_t low = Uniform(DescriptorLow<kUnitBytes>(ring.base + kRingHeader) +
                                 static_cast<uint32_t>(ring.slot) * (kStageBytes<kWords, kMixed> >> 4));
    Unrolled<kWords>([&](auto pair) {
      uint32_t a[2][4];
      StepOperand<kWords, 2 * pair>(a[0], codes, ranks, minus_one);
      StepOperand<kWords, 2 * pair + 1>(a[1], codes, ranks, minus_one);
      Pin(a[0]);
      Pin(a[1]);
      if constexpr (pair == 0) BarrierWait(ring.full(ring.slot), ring.phase);
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Wgmma<64 * kWidth>::Bits(Accumulators<kWidth>(), a[i], Descriptor(low + (4 * pair + 2 * i) * (kUnitBytes >> 4)),
                                 pair + i > 0 || !kFirst);
      }
      WgmmaCommit();
      WgmmaWait<1>(acc);
      if constexpr (pair == 0 && !kFirst) Release(held);
    });
    uint32_t a[4];
    CorrectionOperand(a, codes, ranks);
    Pin(a);
    WgmmaFence();
    Wgmma<64 * kWidth>::Bytes(Accumulators<kWidth>(), a, Descriptor(low + 4 * kWords * (kUnitBytes >> 4)));
    WgmmaCommit();
    WgmmaWait<1>(acc);
    held = 8 * static_cast<uint32_t>(ring.slot);
    ring.Next();
  }

  // The epilogue of a chunk: y = y + (float(acc) * gain) * (scale_a * scale_b), every operation rounded. Then releases
  // the chunk's last stage, which holds the scales.
  template <int kWidth>
  __device__ __forceinline__ void ScaleChunk() {
    WgmmaWait<0>(acc);
    const uint32_t scales = stage(previous_slot()) + kStreamBytes<kWords>;
    const uint32_t row_scales =
        scales + kTokenScaleBytes + (static_cast<uint32_t>(warp) * 16 + threadIdx.x % 32 / 4) * 4;
    const float scale0 = LoadShared(row_scales), scale1 = LoadShared(row_scales + 32);
    // Columns go in batches, with all loads of a batch first, so that their latencies overlap.
    constexpr int kBatch = kMixed ? 2 : 4;
#pragma unroll
    for (int i = 0; i < 32 * kWidth; i += 4 * kBatch) {
      float2 token[kBatch];
      float value[4 * kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) token[b] = LoadShared2(scales + threadIdx.x % 4 * 8 + (i / 4 + b) * 32);
      if constexpr (kMixed) {
        float2 gain[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          gain[b] = LoadShared2(scales + kScaleBytes + threadIdx.x % 4 * 8 + (i / 4 + b) * 32);
        }
#pragma unroll
        for (int k = 0; k < 4 * kBatch; ++k) {
          value[k] = __fmul_rn(static_cast<float>(acc[i + k]), k % 2 == 0 ? gain[k / 4].x : gain[k / 4].y);
        }
      } else {
#pragma unroll
        for (int k = 0; k < 4 * kBatch; ++k) value[k] = __fmul_rn(static_cast<float>(acc[i + k]), args.gain);
      }
#pragma unroll
      for (int k = 0; k < 4 * kBatch; ++k) {
        const float scale = __fmul_rn(k % 2 == 0 ? token[k / 4].x : token[k / 4].y, k % 4 < 2 ? scale0 : scale1);
        value[k] = __fmul_rn(value[k], scale);
      }
#pragma unroll
      for (int k = 0; k < 4 * kBatch; ++k) y[i + k] = __fadd_rn(y[i + k], value[k]);
    }
    Release(held);
  }

  // Adds all halves of one block of 16 dimensions to acc. `block`: index of the block in its chunk. kFirst: first block
  // of the chunk.
  template <int kWidth, bool kFirst>
  __device__ __forceinline__ void MultiplyBlock(const uint32_t (&codes)[2], int block) {
    Unrolled<kHalves>([&](auto half) {
      PackedRanks ranks[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (kTable) {
          const int masks = max(args.masks, 16);
          const int mask = half * masks + ((block * 16) & (masks - 1));
          ranks[i] = TableRanks(table + static_cast<uint32_t>(mask * 128), codes[i]);
        } else {
          ranks[i] = DirectRanks<kWords>(codes[i], block);
        }
      }
      MultiplyStage<kWidth, kFirst && half == 0>(codes, ranks);
    });
  }

  // Multiplies a chunk of `blocks` blocks of 16 dimensions. more: other chunks follow. advance(now, more) sets `now` to
  // the codes of the next block and, if `more`, issues the loads of the block after it.
  template <int kWidth, typename Advance>
  __device__ __forceinline__ void MultiplyChunk(const Advance& advance, int blocks, bool more) {
    uint32_t now[2];
    Follow();
    advance(now, more || blocks > 1);
    MultiplyBlock<kWidth, true>(now, 0);
    Lead();
    for (int block = 1; block < blocks; ++block) {
      advance(now, more || block + 1 < blocks);
      MultiplyBlock<kWidth, false>(now, block);
    }
  }

  // Multiplies and scales `chunks` chunks, the last of which has last_blocks blocks of 16 dimensions, for 64 * kWidth
  // tokens. codes: this lane's four codes of row lane / 4 in the first block.
  template <int kWidth>
  __device__ __forceinline__ void MultiplyChunks(const uint32_t* codes, int chunks, int last_blocks) {
    uint32_t next[2] = {__ldg(codes), __ldg(codes + 8 * kTileDims / 4)};
    const auto advance = [&](uint32_t(&now)[2], bool more) {
      now[0] = next[0];
      now[1] = next[1];
      codes += kTileBytes / 4;
      if (more) {
        next[0] = __ldg(codes);
        next[1] = __ldg(codes + 8 * kTileDims / 4);
      }
    };
    for (; chunks > 0; --chunks) {
      MultiplyChunk<kWidth>(advance, chunks == 1 ? last_blocks : args.streams.blocks_per_chunk, chunks > 1);
      ScaleChunk<kWidth>();
    }
  }

  // Stores y, or adds y to the outputs if task.add, for tokens in their order. A tile without padding is stored without
  // comparisons: a warpgroup that writes feeds no tensor core, and comparisons took 6 % of the time at 32 chunks.
  __device__ void Write(const ScKernelTask& task, int first_row, int first_token) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = first_row + lane / 4;
    const int token = first_token + lane % 4 * 2;
    float* to = task.out + token * task.out_stride + row;
    const bool whole = first_row + 16 <= task.rows && first_token + kTokens <= args.streams.tokens;
    if (whole && !task.add) {
#pragma unroll
      for (int i = 0; i < kAccumulators; i += 4) {
        float* next = to + task.out_stride;
        to[0] = y[i];
        next[0] = y[i + 1];
        to[8] = y[i + 2];
        next[8] = y[i + 3];
        to += 8 * task.out_stride;
      }
      return;
    }
    // The loads of kBatch outputs come before their stores: the compiler cannot reorder them, as they might alias.
    constexpr int kBatch = 16;
#pragma unroll
    for (int i = 0; i < kAccumulators; i += kBatch) {
      float before[kBatch] = {};
      bool inside[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        inside[k] = token + (i + k) / 4 * 8 + k % 2 < args.streams.tokens && row + k % 4 / 2 * 8 < task.rows;
        if (inside[k] && task.add) before[k] = to[(k / 4 * 8 + k % 2) * task.out_stride + k % 4 / 2 * 8];
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (inside[k]) {
          to[(k / 4 * 8 + k % 2) * task.out_stride + k % 4 / 2 * 8] =
              task.add ? __fadd_rn(before[k], y[i + k]) : y[i + k];
        }
      }
      to += kBatch / 4 * 8 * task.out_stride;
    }
  }

  // As Write for tokens that are slots of experts (GroupedArgs): the outputs of a slot go to row slots[...] of
  // task.out; y is never added.
  __device__ void WriteSlots(const ScKernelTask& task, int first_row, int token_tile) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = first_row + lane / 4;
    const int32_t* slots = args.slots + (args.schedule.first_tile + token_tile) * kTokens + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kAccumulators; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int slot = slots[i / 4 * 8 + j];
        if (slot < 0) continue;
        float* to = task.out + slot * task.out_stride + row;
        if (row < task.rows) to[0] = y[i + j];
        if (row + 8 < task.rows) to[8] = y[i + 2 + j];
      }
    }
  }

  // As Write for tokens that are rows in a sorted order: token t of the tile is row rows[t] of task.out, for 0 <= t <
  // `those`.
  __device__ void WriteRows(const ScKernelTask& task, int first_row, const int32_t* rows, int those) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row = first_row + lane / 4;
    const int tokens = those - lane % 4 * 2;  // tokens of the tile from this lane's first on
    const int2* order = reinterpret_cast<const int2*>(rows) + lane % 4;
    float* const to = task.out + row;
    const bool whole = first_row + 16 <= task.rows && those >= kTokens;
    if (whole && !task.add) {
#pragma unroll
      for (int i = 0; i < kAccumulators; i += 4) {
        const int2 two = __ldg(order + i);
        float* const first = to + two.x * task.out_stride;
        float* const second = to + two.y * task.out_stride;
        first[0] = y[i];
        second[0] = y[i + 1];
        first[8] = y[i + 2];
        second[8] = y[i + 3];
      }
      return;
    }
    constexpr int kBatch = 16;
#pragma unroll
    for (int i = 0; i < kAccumulators; i += kBatch) {
      float* each[kBatch];
      float before[kBatch] = {};
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const int token = (i + k) / 4 * 8 + k % 2;
        const bool inside = token < tokens && row + k % 4 / 2 * 8 < task.rows;
        const int at = inside ? __ldg(reinterpret_cast<const int*>(order + (i + k) / 4 * 4) + k % 2) : 0;
        each[k] = inside ? to + at * task.out_stride + k % 4 / 2 * 8 : nullptr;
        if (inside && task.add) before[k] = *each[k];
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (each[k] != nullptr) *each[k] = task.add ? __fadd_rn(before[k], y[i + k]) : y[i + k];
      }
    }
  }

  // The consumer's main loop over the pieces of the cluster's schedule. `rank`: rank of the block in its cluster.
  __device__ __forceinline__ void Run(int cluster, uint32_t rank) {
    const ScStreams& s = args.streams;
    const int tail_blocks = s.dim_blocks - (s.chunks - 1) * s.blocks_per_chunk;
    const auto& schedule = ScheduleOf(args);
    for (int step = 0; step < StepsOf(args, cluster); ++step) {
      auto piece = schedule.At(cluster, step);
      if (piece.chunk_begin == piece.chunk_end) continue;
      const int last_blocks = piece.chunk_end == s.chunks ? tail_blocks : s.blocks_per_chunk;
      const ScKernelTask& task = TaskOf(args, piece.tile / schedule.supers, piece.tile % schedule.supers);
      const int warp_row = FirstRow(task, piece.tile % schedule.supers, rank) + warp * 16;
      if (warp_row / 64 * 64 >= task.rows_padded) {
        for (int chunk = piece.chunk_begin; chunk < piece.chunk_end; ++chunk) {
          SkipChunk(chunk + 1 == piece.chunk_end ? last_blocks : s.blocks_per_chunk);
        }
        continue;
      }
      if (kIsGrouped<Args> || piece.chunk_begin == 0) {
#pragma unroll
        for (int i = 0; i < kAccumulators; ++i) y[i] = 0;
      } else if constexpr (!kIsGrouped<Args>) {
        const int rest_tile = piece.tile - schedule.full * schedule.clusters;
        LoadPartial(args, rest_tile, rank, piece.number, y);
      }
      // Codes lie in tiles of 32 rows x 16 dimensions, one for each block of dimensions; row and row + 8 are in one
      // tile.
      const int lane = static_cast<int>(threadIdx.x % 32);
      const int row = warp_row + lane / 4;
      const int64_t first_tile =
          static_cast<int64_t>(row / kTileRows) * s.dim_blocks + piece.chunk_begin * s.blocks_per_chunk;
      const uint32_t* codes = reinterpret_cast<const uint32_t*>(task.codes + first_tile * kTileBytes +
                                                                row % kTileRows * kTileDims + lane % 4 * 4);
      // A piece of a tile of expert slots always has all chunks. To take s.chunks, not the difference, keeps the kernel
      // for streams of two words from spilling registers.
      const int chunks = kIsGrouped<Args> ? s.chunks : piece.chunk_end - piece.chunk_begin;
      if (piece.width == 3) {
        MultiplyChunks<3>(codes, chunks, last_blocks);
      } else if (piece.width == 2) {
        MultiplyChunks<2>(codes, chunks, last_blocks);
      } else {
        MultiplyChunks<1>(codes, chunks, last_blocks);
      }

      piece = schedule.At(cluster, Opaque(step));
      const int token_tile = piece.tile / schedule.supers;
      const int super = piece.tile % schedule.supers;
      if constexpr (kIsGrouped<Args>) {
        const ScKernelTask& done = TaskOf(args, token_tile, super);
        WriteSlots(done, FirstRow(done, super, rank) + warp * 16, token_tile);
      } else {
        if (piece.chunk_end < schedule.chunks) {
          StorePartial(args, piece.tile - schedule.full * schedule.clusters, rank, piece.number + 1, y);
          continue;
        }
        const ScKernelTask& done = TaskOf(args, token_tile, super);
        if constexpr (kIsRowGroup<Args>) {
          const GroupRows& rows = args.rows;
          WriteRows(done, FirstRow(done, super, rank) + warp * 16,
                    rows.order + rows.group->first + token_tile * kTokens, rows.group->rows - token_tile * kTokens);
        } else {
          Write(done, FirstRow(done, super, rank) + warp * 16, token_tile * kTokens);
        }
      }
    }
  }
};

}  // namespace stoch::cuda::prefill
