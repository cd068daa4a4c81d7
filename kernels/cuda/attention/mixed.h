// SPDX-License-Identifier: Apache-2.0
// SC attention with stream lengths of rows, integers, multiplier tables or gates whose signs lie in the table.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pass.h"
#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

// plain/attention.cu: RoPE, the append and attention of every row of a pass, AttentionMode::kPerToken, dilated where there
// are pairs, with any lengths, tables, hardware and factors of q and k. While a graph is recorded the lengths of the
// sequences are not known, and a call of ScNormalise::kCall is the whole pass.
// Bits: docs/research.md, docs/hardware.md, as on the CPU.
void LaunchPlainAttention(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                          const MixedProducts& products, const DilatedPairs& pairs, const CudaPass& pass);

// plain/window.cu: the same of kPerHead and kPerRow, of one sequence after the other; qk, av: the operators of the layer.
// Requires eager calls (DeviceContext::RequireEager).
void LaunchPlainWindow(DeviceContext& ctx, const AttentionArgs& args, const AttentionCall& call,
                       const MixedProducts& products, const ScOperator& qk, const ScOperator& av, const CudaPass& pass);

// Queries of a pass with the lengths of every (row, head), in scratch.
struct MixedQueries {
  QueryCodes q = {};
  uint32_t* wide_words = nullptr;  // of q: codes of ranks (ranks.h), where there are products.qk_ranks
  ByteTable* q_tables = nullptr;   // [rows][num_heads]
  uint8_t* q_slots = nullptr;      // [rows][num_heads]
  uint8_t* p_slots = nullptr;      // [rows][num_heads], written by who attends
};
// RoPE, the append, and codes of queries. Requires: lengths kByRow or kByTile.
MixedQueries LaunchAppendMixed(DeviceContext& ctx, Scratch& scratch, const AttentionArgs& args,
                               const MixedProducts& products);
// Shows the observer, if there is one, what the rows ran at.
void ShowMixedLengths(DeviceContext& ctx, const AttentionArgs& args, const OpSite& site, const MixedProducts& products,
                      const CudaPass& pass, const MixedQueries& rows);

// hopper/wide.cu: tiles of rows with lengths of their own. Codes of q are those of ranks; qk, av and the swapped streams in
// args.kv are the longest's. Requires: LongestShape, its plan, and TakesBatch.
struct WideLengths {
  const RankTable* qk_ranks = nullptr;  // [slots]
  const uint8_t* q_slots = nullptr;     // [rows][num_heads]
  const RankTable* av_ranks = nullptr;
  LengthView av_rule;
  uint8_t* p_slots = nullptr;  // [rows][num_heads], written
};
void LaunchMixedWide(DeviceContext& ctx, const AttentionArgs& args, const AttentionShape& shape, const WidePlan& plan,
                     const ScOperands& operands, const WideLengths& lengths, const TileSet& tiles,
                     const TileBatch& batch);

}  // namespace stoch::cuda
