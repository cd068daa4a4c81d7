// SPDX-License-Identifier: Apache-2.0
// p v by the first words of the values' streams, for the resident look-up kernel (resident_lookup.cu) and up to four
// query heads of 128 dimensions.
//
// A count is the number of ones that the thermometer of one operand and the stream of the other have in common; which
// operand has the thermometer is free (SwapStreams in kernels/sc/swap.h). Here weights have thermometers and values
// have streams. Weights are relative to a row's largest, so in deep rows nearly all levels are at most 32: their
// thermometers end in the first word (32 bits), and only the first words of the values' streams count. A look-up of a
// value's code then reads one word of shared memory instead of the four of a thermometer, and one m16n8k256 step covers
// eight positions. The few larger levels are taken out of the loop and listed (ListedWeights); if they are not few, the
// block multiplies by whole thermometers (resident_values.cuh).
//
// The table has words of 16 masks and both signs, four copies of each, one for each of four banks. The eight lanes of a
// column of a tile's operand would all look up one mask, which four copies cannot serve at once. So half of these lanes
// take the positions in another order, and the four heads have two columns each, one per order. Half of the products
// are unused, but there is no bank conflict.
#pragma once

#include "kernels/cuda/attention/split/resident_values.cuh"

namespace stoch::cuda {

static_assert(kSplitWordsMasks == kGroupDims && kSplitWordsBytes == kCodes * kSplitWordsMasks * 16);
inline constexpr int kWordsLevels = kCodes / 2;
inline constexpr int kWordsMostLevel = 32;  // largest level that the loop multiplies: its thermometer is one whole word

// Weights with levels above kWordsMostLevel, which the loop (AddFirstWords) leaves out and AddListed adds. In shared
// memory.
struct ListedWeights {
  static constexpr int kMost = 192;
  static constexpr int kPositions = 16;  // a block lists at most one weight per kPositions of its positions
  uint32_t of[kMost];  // [kMost] local position from bit 16 on, head in bits 8 to 15, level in bits 0 to 7

  __device__ __forceinline__ static int Most(const Stripes& b) { return min(kMost, b.count() / kPositions); }
  __device__ __forceinline__ static int Position(uint32_t listed) { return static_cast<int>(listed >> 16); }
  __device__ __forceinline__ static int Head(uint32_t listed) { return static_cast<int>(listed >> 8 & 0xff); }
  __device__ __forceinline__ static int Level(uint32_t listed) { return static_cast<int>(listed & 0xff); }

  // Returns the levels of positions i to i + 3 of a head, with 0 for those that it lists. `count` counts the levels
  // that should be listed; if it exceeds `most`, some had no room and stay in the result.
  __device__ __forceinline__ uint32_t Take(int head, int i, uint32_t levels, int most, int32_t& count) {
    uint32_t beyond = (levels + (127u - kWordsMostLevel) * 0x01010101u) & 0x80808080u;
#pragma unroll 1
    while (beyond != 0 && *static_cast<volatile int32_t*>(&count) <= most) {
      const int shift = __ffs(static_cast<int>(beyond)) - 8;
      beyond &= beyond - 1;
      const int place = atomicAdd(&count, 1);
      if (place >= most) continue;
      of[place] =
          static_cast<uint32_t>(i + shift / 8) << 16 | static_cast<uint32_t>(head) << 8 | (levels >> shift & 0xff);
      levels &= ~(0xffu << shift);
    }
    return levels;
  }
  // Puts the first `count` listed levels back among the levels in `scores`. Called by all threads of the block.
  __device__ __forceinline__ void PutBack(const Scores& scores, int count) const {
    for (int n = static_cast<int>(threadIdx.x); n < count; n += kSplitResidentThreads) {
      const int i = Position(of[n]);
      auto* const four = reinterpret_cast<uint8_t*>(scores.at + Head(of[n]) * scores.stride + (i & ~3));
      four[i & 3] = static_cast<uint8_t>(Level(of[n]));
    }
  }
};

// Whether the table has all masks of the block's positions, so that a position's mask depends only on its place in a
// group of 16.
__device__ __forceinline__ bool HasWordsMasks(const SplitArgs& args, const Stripes& b) {
  return args.av.masks <= kSplitWordsMasks || b.stripe() == kSplitWordsMasks;
}

// Fills the table in shared memory with first words of values' streams for the 16 positions of a group: [position / 2 %
// 2][code][position / 4][position % 2][copy]. Called by `threads` threads, this one being number `thread`.
__device__ __forceinline__ void FillFirstWords(const SplitArgs& args, const Stripes& b, void* table, int thread,
                                               int threads) {
  constexpr int kStep = kWordsLevels * 8;  // entries of 16 bytes for one value of position / 2 % 2 and one sign
  const int first = b.rank << b.shift;
  auto* const to = static_cast<uint4*>(table);
#pragma unroll 8
  for (int i = thread; i < 2 * kStep; i += threads) {
    const int level = i >> 3 & (kWordsLevels - 1);
    const int position = (i >> 1 & 3) * 4 + i / kStep * 2 + (i & 1);
    const int mask = (first + position) & (args.av.masks - 1);
    const uint32_t word =
        LoadTablePair(args.attention.kv.av_swapped + (mask * kWordsLevels + level) * args.av.stream_words).x;
    const int at = i + (i & kStep);
    to[at] = make_uint4(word, word, word, word);
    to[at + kStep] = make_uint4(~word, ~word, ~word, ~word);
  }
}

// Shared-memory addresses of a lane's look-ups of first words. In turn i, the lane looks up byte i ^ Order() of a word
// of values.
class WordPlaces {
 public:
  __device__ __forceinline__ explicit WordPlaces(uint32_t table) {
    const uint32_t order = Order();
    const uint32_t own = table + (threadIdx.x & 3) * 32 + (threadIdx.x >> 2 & 3) * 4;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) at_[i] = own + (i ^ order) * 16;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) factors_[i] = kRow << (8 * (i ^ order));
    bytes_ = order != 0 ? 0x2301 : 0x3210;
#pragma unroll
    for (int i = 0; i < 2; ++i) asm volatile("" : "+r"(at_[i]));  // keeps the addresses in registers
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(factors_[i]));
    asm volatile("" : "+r"(bytes_));
  }
  // Returns the order (0 or 1) in which this lane takes positions, in its rows and in its column of a tile.
  __device__ __forceinline__ static uint32_t Order() { return threadIdx.x >> 4 & 1; }

  template <int i>
  __device__ __forceinline__ uint32_t Word(uint32_t codes) const {
    return LoadSharedWord<i / 2 * kHalf>(__dp4a(codes, factors_[i], at_[i % 2]));
  }
  // Sets to[i] to the thermometer (one word) of the level in byte i ^ Order(). Requires: levels up to kWordsMostLevel.
  __device__ __forceinline__ void Thermometers(uint32_t levels, uint32_t (&to)[4]) const {
    const uint32_t in_order = __byte_perm(levels, 0, bytes_);
#pragma unroll
    for (int i = 0; i < 4; ++i) asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(to[i]) : "r"(in_order >> (8 * i) & 0xff));
  }

 private:
  static constexpr uint32_t kRow = kSplitWordsMasks / 2 * 16;  // bytes of a code in the table
  static constexpr int kHalf = 2 * kWordsLevels * kRow;
  uint32_t at_[2];
  uint32_t factors_[4];
  uint32_t bytes_;
};

// Adds a lane's accumulators of AddFirstWords to `sums`. A product counts only if its row and its column have the same
// order; a lane without such products takes half of those of lane ^ 2. So the first half of a quad adds dimensions 0
// and 1 of every four, the second half dimensions 2 and 3, each with its sums of negative codes.
template <int kHeadDim, int kWords, int kMaxHeads>
__device__ __forceinline__ void AddWordSums(const int32_t (&acc)[kWords][2][4], const int32_t (&negatives)[kWords][4],
                                            int heads, int32_t (&sums)[kMaxHeads][kHeadDim + 1]) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  const uint32_t half = threadIdx.x >> 1 & 1;
  const bool have = half == WordPlaces::Order();
#pragma unroll
  for (int m = 0; m < kWords; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t own = half == 0 ? acc[m][0][i] : acc[m][1][i];
      const int32_t other = half == 0 ? acc[m][1][i] : acc[m][0][i];
      const int32_t received = __shfl_xor_sync(0xffffffffu, other, 2);
      const int head = (lane & 1) * 2 + i % 2;
      const int dim = ValueGroups<kHeadDim>::Dim() + m * 32 + static_cast<int>(half) * 2 + i / 2;
      const int32_t sum = (have ? own : received) + (negatives[m][i] >> 7);
      if (head < heads) atomicAdd(&sums[head][dim], sum);
    }
  }
}

// Adds p v of the block's positions without the listed weights to `sums`. table: shared address of the table that
// FillFirstWords made; values and before_sums: see AddValues. Called by all threads.
template <int kHeadDim, int kMaxHeads, typename BeforeSums>
__device__ __forceinline__ void AddFirstWords(const SplitArgs& args, const Stripes& b, const Scores& scores,
                                              uint32_t table, ValueGroups<kHeadDim>& values,
                                              int32_t (&sums)[kMaxHeads][kHeadDim + 1], const BeforeSums& before_sums) {
  using Groups = ValueGroups<kHeadDim>;
  constexpr int kWords = Groups::kWords;
  constexpr int kSlots = Groups::kSlots;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int column = lane >> 2 & 3;  // the query head of this lane's column in operand B
  const float* from = scores.at + min(column, b.heads.count - 1) * scores.stride + Groups::Own();
  const int groups = column < b.heads.count ? b.count() / kGroupDims : 0;
  const KvView& kv = args.attention.kv;
  const uint32_t* const of_half =
      kv.v_words + kv.VWord(0, b.heads.kv_head, 0, Groups::Dim() / (kHeadDim / 2) * (kHeadDim / 2));
  const WordPlaces places(table);
  int32_t acc[kWords][2][4] = {};
  int32_t negatives[kWords][4] = {};
  const auto levels_of = [&](int group) -> uint32_t {
    if (group >= groups) return 0;
    return LoadSharedWord(SharedAddress(from) + group * (kGroupDims * 4));
  };
  const auto any_of = [](uint32_t levels) { return __any_sync(0xffffffffu, levels != 0) != 0; };
  struct Turn {
    uint4 v[kWords];
    uint32_t levels;
    bool any;
  };
  uint32_t first = WordPlaces::Order() == 0 ? 0xffffffffu : 0;
  asm volatile("" : "+r"(first));  // keeps `first` in a register
  const uint32_t zero = OpaqueZero<kHeadDim>(kv);
  int group = Groups::Slot();
  Turn turns[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) turns[i].levels = levels_of(group + i * kSlots);
#pragma unroll
  for (int m = 0; m < kWords; ++m) turns[0].v[m] = values.v[m];
#pragma unroll
  for (int i = 0; i < 2; ++i) turns[i].any = any_of(turns[i].levels);
  // Levels and places of the two groups after the next one, whose values are prefetched into L2. kAhead is even,
  // because InTurns requires an even number of places taken.
  constexpr int kAhead = 2;
  uint32_t levels[kAhead + 1];
  uint32_t ahead[kAhead + 1];
  const auto ask = [&](int i, int of_group) {
    ahead[i] = values.places.Next();
    levels[i] = levels_of(of_group);
    asm volatile("" : "+r"(levels[i]));  // keeps the compiler from moving the wait for the load to this point
  };
  const auto prefetch = [&](int i) {
    if (any_of(levels[i])) PrefetchL2OfWarp<kGroupDims * kHeadDim / 2>(of_half + ValuePlace::Words(ahead[i]));
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    ask(i, group + (2 + i) * kSlots);
    prefetch(i);
  }
  uint32_t loaded = values.place;
  const auto step = [&](Turn& now, Turn& next) {
    // If the next group has no weights, the last values are loaded again (see AddValues).
    loaded = (next.any ? values.place : loaded) | (now.v[kWords - 1].w & zero);
    values.Load(loaded, next.v);
    __syncwarp();  // keeps the loads before this point
    if (now.any) {
      uint32_t thermometers[4];
      places.Thermometers(now.levels, thermometers);
      const uint32_t of_columns[2] = {now.levels & first, now.levels & ~first};
#pragma unroll
      for (int m = 0; m < kWords; ++m) {
        // Adds -128 times the level for every negative code: dimensions 0 and 1 in columns of the first order,
        // dimensions 2 and 3 in columns of the second order.
        AddNegatives(now.v[m], of_columns, negatives[m]);
        const uint32_t words[4] = {now.v[m].x, now.v[m].y, now.v[m].z, now.v[m].w};
        const auto add = [&]<int i>() {
#pragma unroll
          for (int p = 0; p < 2; ++p) {
            const uint32_t low = words[2 * p];
            const uint32_t high = words[2 * p + 1];
            BinaryMma(acc[m][p], places.Word<i>(low), places.Word<i>(high), places.Word<i + 1>(low),
                      places.Word<i + 1>(high), thermometers[i], thermometers[i + 1]);
          }
        };
        add.template operator()<0>();
        add.template operator()<2>();
      }
    }
    ask(kAhead, group + (2 + kAhead) * kSlots);
    now.levels = levels[0];
    now.any = any_of(levels[0]);
    values.place = ahead[0];
    prefetch(kAhead);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) levels[i] = levels[i + 1], ahead[i] = ahead[i + 1];
    group += kSlots;
  };
  const int end = b.count() / kGroupDims;
  values.InTurns(
      kv, b, group, end, [&] { step(turns[0], turns[1]); }, [&] { step(turns[1], turns[0]); });
  before_sums();
  AddWordSums<kHeadDim>(acc, negatives, b.heads.count, sums);
}

// Addresses of what p v of one listed weight reads: `values`, the codes of this lane's four dimensions at four
// positions, and `counts`, the row of counts8 for the weight's level.
struct ListedPlace {
  const uint4* values;
  const uint8_t* counts;

  __device__ __forceinline__ ListedPlace(const SplitArgs& args, const Stripes& b, uint32_t listed) {
    const KvView& kv = args.attention.kv;
    const int t = b.Token(ListedWeights::Position(listed));
    const int dim = static_cast<int>(threadIdx.x & 31) * 4;
    const KvPlace place = PlaceOf(kv, b.pages, t);
    const int64_t word = kv.VWord(place.page, b.heads.kv_head, place.slot >> 2, dim);
    values = reinterpret_cast<const uint4*>(kv.v_words + word);
    const int mask = t & (args.av.masks - 1);
    counts = args.av.counts8 + (mask * kWordsLevels + ListedWeights::Level(listed)) * kWordsLevels;
  }
};

// Shared memory for the operands of the first kCount listed weights, which AskForListed copies while AddFirstWords
// runs.
struct ListedStage {
  static constexpr int kCount = 2 * kResidentWarps;
  uint4 values[kCount][32];  // [listed weight][lane] four dimensions of four positions
  uint8_t counts[kCount][kWordsLevels];
};

// Issues asynchronous copies of the operands of the first listed weights to `stage`; each warp copies the operands of
// the weights that it adds in AddListed.
__device__ __forceinline__ void AskForListed(const SplitArgs& args, const Stripes& b, const ListedWeights& listed,
                                             int count, ListedStage& stage) {
  const int lane = static_cast<int>(threadIdx.x & 31);
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x >> 5); n < min(count, ListedStage::kCount); n += kResidentWarps) {
    const ListedPlace from(args, b, listed.of[n]);
    CopyAsync16(SharedAddress(&stage.values[n][lane]), from.values);
    if (lane < kWordsLevels / 16) CopyAsync16(SharedAddress(&stage.counts[n][lane * 16]), from.counts + lane * 16);
  }
}

// Adds p v of `count` listed weights to `sums`, one weight per warp at a time, after waiting for the copies of
// AskForListed. Called by all threads.
template <int kHeadDim, int kMaxHeads>
__device__ __forceinline__ void AddListed(const SplitArgs& args, const Stripes& b, const ListedWeights& listed,
                                          int count, const ListedStage& stage,
                                          int32_t (&sums)[kMaxHeads][kHeadDim + 1]) {
  static_assert(kHeadDim == 4 * 32);
  const int lane = static_cast<int>(threadIdx.x & 31);
  WaitForAllCopies();
  __syncwarp();
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x >> 5); n < count; n += kResidentWarps) {
    const uint32_t at = listed.of[n];
    uint4 v;
    const uint8_t* counts;
    if (n < ListedStage::kCount) {
      v = stage.values[n][lane];
      counts = stage.counts[n];
    } else {
      const ListedPlace from(args, b, at);
      v = __ldcg(from.values);
      counts = from.counts;
    }
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const uint32_t code = words[x] >> (8 * (ListedWeights::Position(at) & 3)) & 0xff;
      const auto of_level = static_cast<int32_t>(counts[code & 0x7f]);
      atomicAdd(&sums[ListedWeights::Head(at)][lane * 4 + x], (code & 0x80) != 0 ? -of_level : of_level);
    }
  }
}

}  // namespace stoch::cuda
