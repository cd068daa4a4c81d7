// SPDX-License-Identifier: Apache-2.0
// The stage of a decode block in shared memory: for each staged chunk, the codes of its activations and, for each code,
// its row of the count table.
#pragma once

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/lengths.cuh"
#include "kernels/cuda/device/peer_wait.cuh"
#include "kernels/cuda/device/quantizer.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/prologue/norm_factor.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sc/decode/args.cuh"

namespace stoch::cuda::decode {

// Arrays of the stage, `staged` being the number of chunks that a block stages at a time. A slot is the index of a
// staged chunk.
struct Stage {
  uint8_t* rows;   // [staged][tokens][128 dims][128 weight levels] low bytes of counts: table rows
  uint8_t* codes;  // [staged][tokens][128 dims] codes of the activations
  float* scales;   // [staged][tokens] scales of the activations
  // [staged][tokens]; bit t: an activation of tile t has the largest level, so that a count may be 256.
  unsigned* top_tiles;
  // Used only if blocks quantize the one row:
  float* norm_lanes;  // [kRowLanes] partial sums of squares for RMSNorm
  uint4* magnitudes;  // [staged] largest |f(x)| of each of a chunk's four warps, as float bits
};
inline constexpr int kNormBytes = kRowLanes * static_cast<int>(sizeof(float));  // bytes of Stage::norm_lanes
// Bytes of norm_lanes and magnitudes, which come first in shared memory, where their addresses are constants.
inline constexpr int kFusedBytes = kNormBytes + 256;
static_assert(kMaxFusedChunks * sizeof(uint4) <= 256);

// Lays out the stage at the beginning of a block's shared memory. kFused: blocks quantize the one row.
template <int kTokens, bool kFused>
__device__ __forceinline__ Stage MakeStage(uint8_t* shared, int staged) {
  Stage stage;
  stage.norm_lanes = reinterpret_cast<float*>(shared);
  stage.magnitudes = reinterpret_cast<uint4*>(shared + kNormBytes);
  stage.rows = shared + (kFused ? kFusedBytes : 0);
  stage.codes = stage.rows + staged * kTokens * kStageBytes;
  stage.scales = reinterpret_cast<float*>(stage.codes + staged * kTokens * kChunkDims);
  stage.top_tiles = reinterpret_cast<unsigned*>(stage.scales + staged * kTokens);
  return stage;
}
template <int kTokens>
int StageBytes(bool fused, int staged) {
  return (fused ? kFusedBytes : 0) + staged * kTokens * (kStageBytes + kChunkDims + 8);
}

// Records that element `index` of Stage::codes has the largest level: sets the bit of its tile in top_tiles. Requires:
// top_tiles zeroed before.
__device__ __forceinline__ void NoteTop(const Stage& stage, int index) {
  atomicOr(stage.top_tiles + index / kChunkDims, 1u << (index % kChunkDims / kTileDims));
}

// Copies the count-table rows of 32 codes to Stage::rows, by a warp. Each lane passes one code in a register; `first`
// is the index in Stage::codes of lane 0's code.
// counts: [mask_bits + 1][levels][levels] in device memory.
__device__ __forceinline__ void StageRows(const uint8_t* counts, int mask_bits, int levels, const Stage& stage,
                                          int first, int code) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int entry = ((first + lane) & mask_bits & (kChunkDims - 1)) * levels + (code & 0x7f);
  if (levels == kRowBytes) {
    constexpr int kPieces = kRowBytes / 16;
    constexpr int kRowsAtOnce = kWarp / kPieces;
    // Byte offsets fit 32 bits: the table has at most 128 masks * 128 levels rows.
    const uint8_t* from = counts + lane % kPieces * 16;
    uint8_t* to = stage.rows + first * kRowBytes + lane * 16;
    uint4 pieces[kPieces];
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const uint32_t at =
          __shfl_sync(kAllLanes, static_cast<uint32_t>(entry) * kRowBytes, k * kRowsAtOnce + lane / kPieces);
      pieces[k] = LoadTable(from + at);
    }
#pragma unroll
    for (int k = 0; k < kPieces; ++k) *reinterpret_cast<uint4*>(to + k * kWarp * 16) = pieces[k];
  } else {
#pragma unroll 1
    for (int r = 0; r < kWarp; ++r) {
      const uint8_t* from = counts + __shfl_sync(kAllLanes, entry, r) * levels;
#pragma unroll 1
      for (int i = lane; i < levels; i += kWarp) stage.rows[(first + r) * kRowBytes + i] = from[i];
    }
  }
}

// The count table that StageRows copies from.
struct CountRows {
  const uint8_t* counts;  // [mask_bits + 1][levels][levels] in device memory
  int mask_bits;          // number of masks - 1
  bool may_be_256;        // whether the count of two largest levels may be 256, which `counts` stores as 0
};
__device__ __forceinline__ CountRows CountsOf(const DecodeArgs& args) { return {args.counts, args.masks - 1, true}; }
__device__ __forceinline__ CountRows CountsOf(const ByteTable& table) {
  return {table.counts, table.mask_bits, table.top_is_256 != 0};
}

// The element of the input row that one thread quantizes: a thread has at most one element of the staged chunks.
struct Element {
  int slot;           // index of the element's chunk among those staged; >= the number staged: the thread has none
  bool used;          // false: padding, not loaded
  const float* x_at;  // address of x
  const float* y_at;  // address of the norm weight (RMSNorm) or x2 (SiLU product)
  float x = 0;
  float y = 0;  // norm weight or x2
};
// Makes the calling thread's element of parts `first` to first + count - 1 (ChunkOfPart): sets its addresses and loads
// its norm weight, which depends on no earlier kernel.
template <typename Args>
__device__ __forceinline__ Element MakeElement(const Args& args, int first, int count) {
  Element e;
  const int d = static_cast<int>(threadIdx.x % kChunkDims);
  e.slot = static_cast<int>(threadIdx.x / kChunkDims);
  const int i = ChunkOfPart(args, first + e.slot) * args.dims.chunk_d + d;
  e.used = e.slot < count && d < args.dims.chunk_d && i < args.dims.dims;
  e.x_at = args.x + i;
  e.y_at = args.y + i;
  MakeHere(e.x_at);
  MakeHere(e.y_at);
  if (args.prologue == Prologue::kRmsNorm && e.used) e.y = __ldg(e.y_at);
  return e;
}
// Loads x, and x2 if there is one. kAroundL1: bypasses the L1, for rows written by kernels that were still running when
// this kernel began.
template <bool kAroundL1 = false>
__device__ __forceinline__ void LoadElement(const DecodeArgs& args, Element& e) {
  const auto load = [](const float* at) { return kAroundL1 ? __ldcg(at) : *at; };
  if (!e.used) return;
  e.x = load(e.x_at);
  if (args.prologue == Prologue::kSiluMul) e.y = load(e.y_at);
}

// How long a poll may wait: without limit for words that this GPU's own kernels post, as PeerPatience says for words
// that other GPUs post.
template <bool kShares>
__device__ __forceinline__ auto PatienceOf(const DecodeArgs& args) {
  if constexpr (kShares) {
    return PeerPatience(args.wait);
  } else {
    return OwnPatience();
  }
}

// Polls one thread's element of a row that the previous kernel posts word by word (handover/row_channel.h). kShares:
// other GPUs post parts of the row.
template <bool kShares>
struct PostedElement {
  uint32_t x = 1;  // word of x as last read; 0: not posted yet
  uint32_t y = 1;  // word of x2 as last read, 1 if there is no x2; 0: not posted yet

  // Reads both words once, without waiting.
  __device__ __forceinline__ void Look(const DecodeArgs& args, const Element& e) {
    if (!e.used) return;
    x = PeekWord(e.x_at);
    if (args.prologue == Prologue::kSiluMul) y = PeekWord(e.y_at);
  }
  // Polls the words that Look did not find posted, and sets e.x and e.y.
  template <typename Patience>
  __device__ __forceinline__ void Receive(const DecodeArgs& args, Element& e, Patience patience) {
    if (!e.used) return;
    while ((x == 0 || y == 0) && patience.MayWait()) {
      if (x == 0) x = PeekWord(e.x_at);
      if (y == 0) y = PeekWord(e.y_at);
    }
    e.x = BitsToFloat(x);
    if (args.prologue == Prologue::kSiluMul) e.y = BitsToFloat(y);
  }

 private:
  static __device__ __forceinline__ uint32_t PeekWord(const float* at) {
    const auto* word = reinterpret_cast<const uint32_t*>(at);
    return kShares ? PeekAnywhere(word) : Peek(word);
  }
};

// Polls everything that a thread needs of a posted row: its element, and for RMSNorm its share of the sum of squares.
template <bool kShares>
struct PostedRow {
  PostedElement<kShares> element;
  PostedLane lane;

  // Issues the first reads of all words, without waiting.
  __device__ __forceinline__ void Look(const DecodeArgs& args, const Element& e) {
    element.Look(args, e);
    const int j = static_cast<int>(threadIdx.x);
    if (args.prologue != Prologue::kRmsNorm || j >= kRowLanes) return;
    lane.template Look<kShares>(reinterpret_cast<const uint32_t*>(args.x) + j, args.dims.dims - j);
  }
  // Waits for the words, sets `e`, and writes this thread's sum of squares to stage.norm_lanes. `row` is args.x.
  __device__ __forceinline__ void Receive(const DecodeArgs& args, Element& e, const float* row, const Stage& stage) {
    element.Receive(args, e, PatienceOf<kShares>(args));
    if (args.prologue != Prologue::kRmsNorm) return;
    ReceiveNormLanes(lane, reinterpret_cast<const uint32_t*>(row), args.dims.dims, stage.norm_lanes,
                     PatienceOf<kShares>(args));
  }
  // Loads an element of a later chunk, after WaitForPrevious: only words of other GPUs may still be missing.
  __device__ __forceinline__ void LoadLater(const DecodeArgs& args, Element& e) {
    if constexpr (kShares) {
      element.Look(args, e);
      element.Receive(args, e, PatienceOf<kShares>(args));
    } else {
      LoadElement(args, e);
    }
  }
};

// Reads the kernel parameters of shared rows early, so that they are in the parameter cache when the block polls and
// posts.
template <bool kShares>
__device__ __forceinline__ void WarmPeers(const DecodeArgs& args) {
  if constexpr (kShares) {
    asm volatile("" ::"l"(args.wait.failed), "l"(args.peers.words[0]), "r"(args.peers.first));
  }
}

// Quantizes and stages `count` chunks of the one row. `value` is f(x) of the calling thread's element, and `slot` the
// index of the element's chunk among those staged. table_of(slot, largest) returns the count table of a chunk whose
// largest |f(x)| has the bits `largest`. sync() is a barrier of all threads that call QuantizeValues; every thread with
// an element must call QuantizeValues.
template <bool kTop256, typename TableOf, typename Sync>
__device__ __forceinline__ void QuantizeValues(const DecodeArgs& args, float value, int slot, int count,
                                               const Stage& stage, const TableOf& table_of, const Sync& sync) {
  static_assert(kMaxFusedChunks * kChunkDims <= Cut<1>::kThreads);
  static_assert(kChunkDims / kWarp == 4);  // warps of a chunk, one word of Stage::magnitudes each
  const unsigned index = threadIdx.x;      // index of the element in Stage::codes; unsigned, so divisions are shifts
  if (slot < count) {
    const uint32_t magnitude = __reduce_max_sync(kAllLanes, FloatToBits(value) & 0x7fffffffu);
    if (index % kWarp == 0) reinterpret_cast<uint32_t*>(stage.magnitudes)[index / kWarp] = magnitude;
    if constexpr (kTop256) {
      if (index % kChunkDims == 0) stage.top_tiles[slot] = 0;
    }
  }
  sync();
  if (slot < count) {
    const uint4 m = stage.magnitudes[slot];
    Extremes extremes;
    extremes.max_abs_bits = max(max(m.x, m.y), max(m.z, m.w));
    const ScopeParams params{ScCode::kSignMagnitude, args.q_max};
    const ScopeQuantizer quantizer(params, extremes);
    const uint8_t code = quantizer.Code(params, value);
    const CountRows table = table_of(slot, extremes.max_abs_bits);
    StageRows(table.counts, table.mask_bits, args.levels, stage, static_cast<int>(index / kWarp * kWarp), code);
    stage.codes[index] = code;
    if constexpr (kTop256) {
      if (table.may_be_256 && (code & 0x7f) == args.levels - 1) NoteTop(stage, static_cast<int>(index));
    }
    if (index % kChunkDims == 0) {
      stage.scales[slot] = quantizer.scale;
      if (!quantizer.finite) args.reporter.Report();
    }
  }
  sync();
}

// Quantizes and stages `count` chunks of the one row from the loaded elements `e`, by all threads of the block. The
// latency of this step delays every linear, so x and y are loaded before the norm is known, and warps without an
// element skip the computation.
// Requires: stage.norm_lanes visible to the block if the prologue is RMSNorm.
template <bool kTop256, typename TableOf>
__device__ __forceinline__ void QuantizeChunks(const DecodeArgs& args, const Element& e, int count, const Stage& stage,
                                               const TableOf& table_of) {
  float value = 0.0f;
  if (e.slot < count) {
    float r = 0.0f;
    if (args.prologue == Prologue::kRmsNorm) r = FoldNorm(stage.norm_lanes, args.dims.dims, args.norm_eps);
    value = ApplyPrologue(args.prologue, e.x, e.y, r);
  }
  QuantizeValues<kTop256>(args, value, e.slot, count, stage, table_of, [] { __syncthreads(); });
}

// Stages `count` chunks from `first` on, of all tokens, from codes in device memory, by all threads of the block. Ends
// with a barrier.
template <int kTokens, bool kTop256>
__device__ void CopyChunks(const DecodeArgs& args, int first, int count, const Stage& stage) {
  constexpr int kThreads = Cut<kTokens>::kThreads;
  if constexpr (kTop256) {
    for (int i = static_cast<int>(threadIdx.x); i < count * kTokens; i += kThreads) stage.top_tiles[i] = 0;
    __syncthreads();
  }
  for (int index = static_cast<int>(threadIdx.x); index < count * kTokens * kChunkDims; index += kThreads) {
    const int i = index / kChunkDims;
    const int d = index % kChunkDims;
    const int chunk = first + i / kTokens;
    const int token = i % kTokens;
    const bool used = token < args.tokens && d < args.dims.chunk_dims(chunk);
    const int64_t at =
        static_cast<int64_t>(token * args.dims.row_tiles + chunk * args.dims.chunk_tiles) * kTileDims + d;
    const uint8_t code = used ? args.codes[at] : uint8_t{0};
    StageRows(args.counts, args.masks - 1, args.levels, stage, index / kWarp * kWarp, code);
    stage.codes[index] = code;
    if constexpr (kTop256) {
      if ((code & 0x7f) == args.levels - 1) NoteTop(stage, index);
    }
    if (d == 0) stage.scales[i] = token < args.tokens ? args.scales[chunk * args.tokens + token] : 0.0f;
  }
  __syncthreads();
}

// Static shared memory of a block whose rows have stream lengths of their own.
template <int kTokens>
struct MixedStage {
  // [part][slot]: count table of each stream length (slot) of a part, a chunk for one task or for all
  // (MixedDecodeArgs).
  ByteTable tables[kMaxDecodeTasks][kMaxByteTables];
  float gains[kMaxFusedChunks * kTokens];  // [staged][tokens] real value of one count
};
// Static shared memory of a block that also picks the slots of the one row by the rules.
struct RuleStage {
  StagedRule rules[kMaxDecodeTasks];    // rule of each part of a chunk
  float lanes[kRowLanes];               // partial sums of squares of f(x)
  uint32_t largest[kRowLanes / kWarp];  // bits of the largest |f(x)| of each warp's elements
  int levels[kMaxDecodeTasks];          // level number that each part's rule gives the row, if its scope is kRow
};

// LoadTables copies the ByteTable of every slot to shared memory, LoadRules the rules; by all threads of the block.
// They read nothing that an earlier kernel writes.
template <int kTokens>
__device__ __forceinline__ void LoadTables(const MixedDecodeArgs& args, MixedStage<kTokens>& mixed) {
  const int t = static_cast<int>(threadIdx.x) / kMaxByteTables;
  const int i = static_cast<int>(threadIdx.x) % kMaxByteTables;
  if (t < args.part_count && i < args.lengths[t].slots) mixed.tables[t][i] = args.lengths[t].tables[i];
}
__device__ __forceinline__ void LoadRules(const MixedDecodeArgs& args, RuleStage& stage) {
  const int t = static_cast<int>(threadIdx.x) / kMaxByteTables;
  const int i = static_cast<int>(threadIdx.x) % kMaxByteTables;
  if (t < args.part_count) StageRule(args.rules[t], stage.rules[t], i, kMaxByteTables);
}

// Whether the RMSNorm weights fit in Stage::rows, which is still empty, and are aligned for 16-byte copies.
__device__ __forceinline__ bool KeepsNorm(const MixedDecodeArgs& args) {
  return args.prologue == Prologue::kRmsNorm && args.dims.dims % 4 == 0 &&
         reinterpret_cast<uintptr_t>(args.y) % 16 == 0 &&
         args.dims.dims * static_cast<int>(sizeof(float)) <= args.staged * kStageBytes;
}
// Starts asynchronous copies of the RMSNorm weights to Stage::rows, if KeepsNorm. Weights depend on no earlier kernel.
__device__ __forceinline__ void KeepNorm(const MixedDecodeArgs& args, const Stage& stage) {
  if (!KeepsNorm(args)) return;
  const uint32_t to = SharedAddress(stage.rows);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * 4; i < args.dims.dims; i += Cut<1>::kThreads * 4) {
    CopyAsync16(to + static_cast<uint32_t>(i) * sizeof(float), args.y + i);
  }
  CommitCopies();
}

// Finds the level number of the one row for every part of a chunk whose rule takes a metric of the whole row, and
// writes rules.levels. By all threads of the block; ends with a barrier.
// Requires: this block has written stage.norm_lanes (RMSNorm) and called KeepNorm, LoadTables and LoadRules.
__device__ __forceinline__ void FindRowLevels(const MixedDecodeArgs& args, const Stage& stage, RuleStage& rules) {
  constexpr int kInFlight = 16;
  const float* ys = KeepsNorm(args) ? reinterpret_cast<const float*>(stage.rows) : args.y;
  WaitForCopies<0>();
  __syncthreads();  // norm_lanes, the norm weights, tables and rules are visible
  const int j = static_cast<int>(threadIdx.x);
  if (j < kRowLanes) {
    const bool has_y = args.prologue != Prologue::kNone;
    float r = 0.0f;
    if (args.prologue == Prologue::kRmsNorm) r = FoldNorm(stage.norm_lanes, args.dims.dims, args.norm_eps);
    uint32_t largest = 0;
    float lane = 0.0f;
#pragma unroll 1
    for (int first = j; first < args.dims.dims; first += kInFlight * kRowLanes) {
      float x[kInFlight], y[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int i = first + k * kRowLanes;
        x[k] = i < args.dims.dims ? args.x[i] : 0.0f;
        y[k] = has_y && i < args.dims.dims ? ys[i] : 0.0f;
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (first + k * kRowLanes >= args.dims.dims) break;
        const float value = ApplyPrologue(args.prologue, x[k], y[k], r);
        largest = max(largest, FloatToBits(value) & 0x7fffffffu);
        lane = Fma(value, value, lane);
      }
    }
    largest = __reduce_max_sync(kAllLanes, largest);
    if (j % kWarp == 0) rules.largest[j / kWarp] = largest;
    rules.lanes[j] = lane;
  }
  __syncthreads();
  if (j < kWarp) {
    uint32_t largest = 0;
#pragma unroll
    for (int w = 0; w < kRowLanes / kWarp; ++w) largest = max(largest, rules.largest[w]);
    const float l2 = args.needs_l2 ? Sqrt(FoldShared<kWarp>(rules.lanes)) : 0.0f;
    if (j < args.part_count && args.rules[j].has_rule && args.rules[j].scope == ScLengthScope::kRow) {
      const LengthView rule = Staged(args.rules[j], rules.rules[j]);
      rules.levels[j] = FixedLevel(rule, SignedMetric(rule, BitsToFloat(largest), l2));
    }
  }
  __syncthreads();
}

// As QuantizeChunks, for rows with stream lengths of their own: stages `count` parts from `first` on, each with the
// count table of the length that its rule picks, and writes mixed.gains.
template <bool kTop256>
__device__ __forceinline__ void QuantizeParts(const MixedDecodeArgs& args, const Element& e, int first, int count,
                                              const Stage& stage, MixedStage<1>& mixed, const RuleStage& rules) {
  QuantizeChunks<kTop256>(args, e, count, stage, [&](int i, uint32_t largest) {
    const int t = (first + i) % args.part_count;
    const int chunk = ChunkOfPart(args, first + i);
    int slot = 0;
    if (args.rules[t].has_rule) {
      const LengthView rule = Staged(args.rules[t], rules.rules[t]);
      const bool of_chunk = rule.scope == ScLengthScope::kChunk;
      slot = SlotOfLevel(rule, of_chunk ? FixedLevel(rule, BitsToFloat(largest)) : rules.levels[t], chunk);
    }
    const ByteTable table = mixed.tables[t][slot];
    mixed.gains[i] = table.gain;  // all threads of the chunk write an equal value
    return CountsOf(table);
  });
}

// As CopyChunks, for rows with stream lengths of their own: stages `count` parts from `first` on, each token with the
// count table of its slot, and writes mixed.gains.
template <int kTokens, bool kTop256>
__device__ void CopyParts(const MixedDecodeArgs& args, int first, int count, const Stage& stage,
                          MixedStage<kTokens>& mixed) {
  constexpr int kThreads = Cut<kTokens>::kThreads;
  if constexpr (kTop256) {
    for (int i = static_cast<int>(threadIdx.x); i < count * kTokens; i += kThreads) stage.top_tiles[i] = 0;
  }
  __syncthreads();  // top_tiles are 0, and mixed.tables are visible
  for (int index = static_cast<int>(threadIdx.x); index < count * kTokens * kChunkDims; index += kThreads) {
    const int i = index / kChunkDims;
    const int d = index % kChunkDims;
    const int chunk = (first + i / kTokens) / args.part_count;
    const int t = (first + i / kTokens) % args.part_count;
    const int token = i % kTokens;
    const bool exists = token < args.tokens;
    const TaskLengths& lengths = args.lengths[t];
    const int64_t at =
        static_cast<int64_t>(token * args.dims.row_tiles + chunk * args.dims.chunk_tiles) * kTileDims + d;
    const int slot = exists && lengths.of_rows != nullptr
                         ? lengths.of_rows[token * lengths.per_row + (lengths.per_row > 1 ? chunk : 0)]
                         : 0;
    const uint8_t code = exists && d < args.dims.chunk_dims(chunk) ? args.codes[at] : uint8_t{0};
    const ByteTable table = mixed.tables[t][slot];
    StageRows(table.counts, table.mask_bits, args.levels, stage, index / kWarp * kWarp, code);
    stage.codes[index] = code;
    if constexpr (kTop256) {
      if (table.top_is_256 != 0 && (code & 0x7f) == args.levels - 1) NoteTop(stage, index);
    }
    if (d == 0) {
      stage.scales[i] = exists ? args.scales[chunk * args.tokens + token] : 0.0f;
      mixed.gains[i] = table.gain;
    }
  }
  __syncthreads();
}

}  // namespace stoch::cuda::decode
