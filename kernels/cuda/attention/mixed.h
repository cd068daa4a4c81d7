// SPDX-License-Identifier: Apache-2.0
// SC attention of calls that the uniform-length kernels do not take: mixed stream lengths, integers, multiplier tables,
// hardware that is not ideal, gates whose signed counts are in the count table, or pairs of dilated attention.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/attention/dilated.cuh"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pass.h"
#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

// plain/attention.cu: RoPE, the append to the cache and attention of every row of a pass in mode kPerToken, for any
// stream lengths, multiplier tables, faults, adders, registers and smoothing factors of q and k. If `pairs` has pairs,
// attention is over the positions that they admit. If args.k is null, args.kv (a ring's window) has the keys already.
// While a graph is recorded the host does not know the sequences, so a rule with ScNormalise::kCall takes the whole
// pass as one call, not each sequence.
// Bits: docs/research.md, docs/hardware.md, as on the CPU.
void LaunchPlainAttention(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                          const MixedProducts& products, const DilatedPairs& pairs, const CudaPass& pass);

// plain/attention_append.cu: what LaunchPlainAttention does first, for the keys and values of a call alone: RoPE of keys
// and the append to the cache. slots: as LaunchAppendCodes.
void LaunchPlainAppend(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                       const MixedProducts& products, const int32_t* slots);

// plain/window.cu: RoPE, the append to the cache and attention in the modes kPerHead and kPerRow, one sequence after
// the other. Takes any stream lengths, multiplier tables, integers in place of SC, and smoothing factors of q and k.
// qk, av: the operators of the layer. Calls DeviceContext::RequireEager, as the host loops over the sequences.
// Requires: products without faults, gate adders or narrow registers.
void LaunchPlainWindow(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                       const MixedProducts& products, const ScOperator& qk, const ScOperator& av, const CudaPass& pass);

// Quantized queries of a pass with a stream length for every (row, head). A slot is the index of a length in
// ScExtras::by_length. All arrays are scratch.
struct MixedQueries {
  QueryCodes q = {};
  // Codes of q as ranks [rows][num_heads][head_dim / 4], for wide tiles (ranks.h); null without products.qk_ranks.
  uint32_t* wide_words = nullptr;
  ByteTable* q_tables = nullptr;  // [rows][num_heads]: count table at each query's length
  uint8_t* q_slots = nullptr;     // [rows][num_heads]: slot of each query's length
  // [rows][num_heads]: slot of each row of probabilities; written by the attention kernels
  uint8_t* p_slots = nullptr;
};
// Applies RoPE, appends the codes of k and v to the cache, and quantizes the queries, each at its own length. The
// returned arrays are taken from `scratch`. Requires: AttentionLengths kByRow or kByTile.
MixedQueries LaunchAppendMixed(DeviceContext& ctx, Scratch& scratch, const AttentionArgs& args,
                               const MixedProducts& products);
// Reports the stream lengths of all rows to ctx.observer; without an observer does nothing. Waits for the stream.
void ShowMixedLengths(DeviceContext& ctx, const AttentionArgs& args, const OpSite& site, const MixedProducts& products,
                      const CudaPass& pass, const MixedQueries& rows);

// Operands of LaunchMixedWide: the rank tables of every length, and the slot of each (row, head).
struct WideLengths {
  const RankTable* qk_ranks = nullptr;  // [slots]: ranks of a query's codes at each length
  const uint8_t* q_slots = nullptr;     // [rows][num_heads]: slot of each query
  // [slots]: ranks of a probability's codes at each length, and the rule that picks the length of a row of
  // probabilities.
  const RankTable* av_ranks = nullptr;
  LengthView av_rule;
  uint8_t* p_slots = nullptr;  // [rows][num_heads]: slot of each row of probabilities, written by the softmax
};
// hopper/wide.cu: SC attention of one batch of tiles in which every row has its own stream length. operands.q has the
// queries' codes as ranks (ranks.h). operands.qk, operands.av and the SwapStreams tables in args.kv are those of the
// longest length. Requires: shape is LongestShape, plan is made for that shape, and TakesBatch(plan,
// batch.num_sequences).
void LaunchMixedWide(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const WidePlan& plan,
                     const ScOperands& operands, const WideLengths& lengths, const TileSet& tiles,
                     const TileBatch& batch);

}  // namespace stoch::cuda
