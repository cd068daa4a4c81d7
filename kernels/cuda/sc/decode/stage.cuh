// SPDX-License-Identifier: Apache-2.0
// A decode block's chunks in shared memory: the activations' codes and, for each, its row of the count table.
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

struct Stage {
  uint8_t* rows;   // [staged][tokens][128 dims][128] table rows
  uint8_t* codes;  // [staged][tokens][128]
  float* scales;   // [staged][tokens]
  // [staged][tokens] bit t: tile t has a code of the largest level, whose count of 256 does not fit a byte.
  unsigned* top_tiles;
  // For the one row that is quantized here:
  float* norm_lanes;  // [kRowLanes]
  uint4* magnitudes;  // [staged] the largest of each of a chunk's warps
};
// In front of the others, where their places are constants.
inline constexpr int kNormBytes = kRowLanes * static_cast<int>(sizeof(float));
inline constexpr int kFusedBytes = kNormBytes + 256;
static_assert(kMaxFusedChunks * sizeof(uint4) <= 256);

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

// Notes that element `index` of the codes has the largest level. top_tiles starts at 0.
__device__ __forceinline__ void NoteTop(const Stage& stage, int index) {
  atomicOr(stage.top_tiles + index / kChunkDims, 1u << (index % kChunkDims / kTileDims));
}

// Copies the table rows of 32 staged codes, of which each lane of a warp has one; `first` is the first one's index.
// Straight from registers: the codes need not be in shared memory before.
// `counts`: of masks - 1 = `mask_bits` masks.
__device__ __forceinline__ void StageRows(const uint8_t* counts, int mask_bits, int levels, const Stage& stage,
                                          int first, int code) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int entry = ((first + lane) & mask_bits & (kChunkDims - 1)) * levels + (code & 0x7f);
  if (levels == kRowBytes) {
    constexpr int kPieces = kRowBytes / 16;
    constexpr int kRowsAtOnce = kWarp / kPieces;
    // 32 bits: the table has at most 128 * 128 rows.
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

// Sources of StageRows.
struct CountRows {
  const uint8_t* counts;
  int mask_bits;
  bool may_be_256;  // ScTables::top_is_256
};
__device__ __forceinline__ CountRows CountsOf(const DecodeArgs& args) { return {args.counts, args.masks - 1, true}; }
__device__ __forceinline__ CountRows CountsOf(const ByteTable& table) {
  return {table.counts, table.mask_bits, table.top_is_256 != 0};
}

// A thread's element of the row that QuantizeChunks quantizes.
struct Element {
  int slot;   // of its chunk among those staged; not below `count`: no chunk
  bool used;  // not padding
  const float* x_at;
  const float* y_at;
  float x = 0;
  float y = 0;  // its norm weight or x2
};
// The element, with what does not depend on other kernels: its norm weight.
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
// kAroundL1: of rows that kernels wrote which have ended since this one began.
template <bool kAroundL1 = false>
__device__ __forceinline__ void LoadElement(const DecodeArgs& args, Element& e) {
  const auto load = [](const float* at) { return kAroundL1 ? __ldcg(at) : *at; };
  if (!e.used) return;
  e.x = load(e.x_at);
  if (args.prologue == Prologue::kSiluMul) e.y = load(e.y_at);
}

// How long a polled row is waited for.
template <bool kShares>
__device__ __forceinline__ auto PatienceOf(const DecodeArgs& args) {
  if constexpr (kShares) {
    return PeerPatience(args.wait);
  } else {
    return OwnPatience();
  }
}

// An element of a row that the kernel before posts (handover/row_channel.h). kShares: other GPUs post parts of it.
template <bool kShares>
struct PostedElement {
  uint32_t x = 1;
  uint32_t y = 1;

  __device__ __forceinline__ void Look(const DecodeArgs& args, const Element& e) {
    if (!e.used) return;
    x = PeekWord(e.x_at);
    if (args.prologue == Prologue::kSiluMul) y = PeekWord(e.y_at);
  }
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

// All that a block polls of that row: its threads' elements, and lanes of the norm.
template <bool kShares>
struct PostedRow {
  PostedElement<kShares> element;
  PostedLane lane;

  __device__ __forceinline__ void Look(const DecodeArgs& args, const Element& e) {
    element.Look(args, e);
    const int j = static_cast<int>(threadIdx.x);
    if (args.prologue != Prologue::kRmsNorm || j >= kRowLanes) return;
    lane.template Look<kShares>(reinterpret_cast<const uint32_t*>(args.x) + j, args.dims.dims - j);
  }
  // row: args.x.
  __device__ __forceinline__ void Receive(const DecodeArgs& args, Element& e, const float* row, const Stage& stage) {
    element.Receive(args, e, PatienceOf<kShares>(args));
    if (args.prologue != Prologue::kRmsNorm) return;
    ReceiveNormLanes(lane, reinterpret_cast<const uint32_t*>(row), args.dims.dims, stage.norm_lanes,
                     PatienceOf<kShares>(args));
  }
  // A later chunk, whose words all are there but those of other GPUs.
  __device__ __forceinline__ void LoadLater(const DecodeArgs& args, Element& e) {
    if constexpr (kShares) {
      element.Look(args, e);
      element.Receive(args, e, PatienceOf<kShares>(args));
    } else {
      LoadElement(args, e);
    }
  }
};

// Parameters of shared rows that are needed when there is no time to wait for them.
template <bool kShares>
__device__ __forceinline__ void WarmPeers(const DecodeArgs& args) {
  if constexpr (kShares) {
    asm volatile("" ::"l"(args.wait.failed), "l"(args.peers.words[0]), "r"(args.peers.first));
  }
}

// Quantizes and stages `count` chunks of the one row, whose values f(x) threads have, one of chunk `slot` each.
// table_of(slot, largest): the counts of a staged chunk whose largest element is that. sync(): a barrier of the threads
// that call, all of the chunks' at least.
template <bool kTop256, typename TableOf, typename Sync>
__device__ __forceinline__ void QuantizeValues(const DecodeArgs& args, float value, int slot, int count,
                                               const Stage& stage, const TableOf& table_of, const Sync& sync) {
  static_assert(kMaxFusedChunks * kChunkDims <= Cut<1>::kThreads);
  static_assert(kChunkDims / kWarp == 4);  // uint4
  const unsigned index = threadIdx.x;      // of the element; unsigned: divisions are shifts
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

// From x, by the block: latencies, not work, count before every linear, so everything is loaded
// before the norm is known, and warps without an element do nothing.
// Requires: the lanes of the norm in shared memory, visible.
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

// From codes that are in memory already.
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

// Shared memory of blocks of several lengths: the tables of every task, and the gains of staged chunks.
template <int kTokens>
struct MixedStage {
  ByteTable tables[kMaxDecodeTasks][kMaxByteTables];
  float gains[kMaxFusedChunks * kTokens];
};
// And where they pick the slots of the one row themselves: the rules, next to the threads.
struct RuleStage {
  StagedRule rules[kMaxDecodeTasks];
  float lanes[kRowLanes];
  uint32_t largest[kRowLanes / kWarp];
  int levels[kMaxDecodeTasks];  // of the row
};

// Brings tables and rules; they do not depend on earlier kernels.
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

// Whether the norm's weights have room where count rows are staged later, and lie as copies want them.
__device__ __forceinline__ bool KeepsNorm(const MixedDecodeArgs& args) {
  return args.prologue == Prologue::kRmsNorm && args.dims.dims % 4 == 0 &&
         reinterpret_cast<uintptr_t>(args.y) % 16 == 0 &&
         args.dims.dims * static_cast<int>(sizeof(float)) <= args.staged * kStageBytes;
}
// Sends for the norm's weights, which do not depend on earlier kernels.
__device__ __forceinline__ void KeepNorm(const MixedDecodeArgs& args, const Stage& stage) {
  if (!KeepsNorm(args)) return;
  const uint32_t to = SharedAddress(stage.rows);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) * 4; i < args.dims.dims; i += Cut<1>::kThreads * 4) {
    CopyAsync16(to + static_cast<uint32_t>(i) * sizeof(float), args.y + i);
  }
  CommitCopies();
}

// The level of the one row for every part whose rule is of rows. All threads of the block.
// Requires: the lanes of the norm written by this block, KeepNorm called.
__device__ __forceinline__ void FindRowLevels(const MixedDecodeArgs& args, const Stage& stage, RuleStage& rules) {
  constexpr int kInFlight = 16;
  const float* ys = KeepsNorm(args) ? reinterpret_cast<const float*>(stage.rows) : args.y;
  WaitForCopies<0>();
  __syncthreads();  // the norm's lanes and weights, tables and rules
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

// QuantizeChunks where tasks have slots of their own. Parts from `first` on.
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
    mixed.gains[i] = table.gain;  // by all threads of the chunk
    return CountsOf(table);
  });
}

// CopyChunks where a task's rows have tables of their own: parts first.. of args.part_count parts a chunk.
template <int kTokens, bool kTop256>
__device__ void CopyParts(const MixedDecodeArgs& args, int first, int count, const Stage& stage,
                          MixedStage<kTokens>& mixed) {
  constexpr int kThreads = Cut<kTokens>::kThreads;
  if constexpr (kTop256) {
    for (int i = static_cast<int>(threadIdx.x); i < count * kTokens; i += kThreads) stage.top_tiles[i] = 0;
  }
  __syncthreads();  // and the tables are there
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
