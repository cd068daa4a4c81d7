// SPDX-License-Identifier: Apache-2.0
// Builds the residual table of a part of a chunk, and the operands of the int8 products that are added to it
// (kernels/sc/sc_residual.h): count = three products of small factors + a residual of 0..7.
#pragma once

#include <array>

#include "kernels/cuda/sc/table/lookup.cuh"
#include "kernels/cuda/sc/table/stage.cuh"
#include "kernels/sc/sc_residual.h"

namespace stoch::cuda::batch_table {

// Sizes for kTokens tokens. A chunk is cut into kParts parts of its dimensions, whose tables take turns in shared
// memory; kParts is as small as shared memory allows. A table entry has four bits a token. kInt8: the four bits are a
// number that int8 mma sums; else they are bits that binary mma counts.
template <int kTokens_, int kParts_, bool kInt8_ = false>
struct Geometry {
  static constexpr bool kInt8 = kInt8_;
  static constexpr int kTokens = kTokens_;
  static constexpr int kParts = kParts_;
  static_assert(kTokens == 8 || kTokens == 16);
  static constexpr int kTiles = kTokens / kTileTokens;
  static constexpr int kPartDims = kChunkDims / kParts;
  static constexpr int kPartWords = kPartDims / 4;
  static constexpr int kPairs = kPartDims / (2 * kTileDims);  // pairs of weight tiles: 32 dimensions, one int8 mma
  static constexpr int kFragments = kPairs * kResidualTerms * kTiles;
  using Layout = TableLayout<kTokens / 2, kPartDims>;
};

// Static shared memory of ResidualLookups.
template <typename G, bool kMixed = false>
struct ResidualShared : TokenSlots<G::kTokens, kMixed> {
  uint32_t codes[G::kTokens][kWords];         // the chunk's activations, four codes a word
  uint32_t factors[G::kFragments][kWarp][2];  // fragments of operand B of the int8 products [pair][term][tile][lane]
  uint2 masks[2][kTileTokens];  // [product][token of a tile] operands B of the two products that sum entries
  int32_t start[G::kTokens];    // constant that a token's sums start with
};

// Transposes an 8 x 8 matrix of nibbles: nibble n of out[i] is nibble i of word[n]. A word has one token's residuals of
// eight levels; an output has one level's residuals of eight tokens.
__device__ __forceinline__ void TransposeNibbles(const uint32_t (&word)[8], uint32_t (&out)[8]) {
  uint32_t even[4], odd[4];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    even[m] = (word[2 * m] & 0x0f0f0f0fu) | (word[2 * m + 1] << 4 & 0xf0f0f0f0u);
    odd[m] = (word[2 * m] >> 4 & 0x0f0f0f0fu) | (word[2 * m + 1] & 0xf0f0f0f0u);
  }
  uint32_t e[4], o[4];
  Transpose(even[0], even[1], even[2], even[3], e);
  Transpose(odd[0], odd[1], odd[2], odd[3], o);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = e[i];
    out[2 * i + 1] = o[i];
  }
}

// Converts eight stored residuals to 3-bit numbers. A stored residual is four bits that count 1, 2, 2 and 2, the last
// three a thermometer (kernels/sc/sc_residual.h).
__device__ __forceinline__ uint32_t ResidualNumbers(uint32_t bits) {
  return (bits & 0x55555555u) | ((bits ^ bits >> 1 ^ bits >> 2) & 0x22222222u);
}

// Builds the residual table of a part of the staged codes, by all threads of the block: a thread makes the entries of a
// share of the levels, of both signs, in one dimension. Load issues the loads of residuals and Write stores the
// entries, so that other work can hide the latency in between.
template <typename G, bool kMixed = false>
class TableShare {
 public:
  static constexpr int kTokens = G::kTokens;

  __device__ __forceinline__ void Load(const ArgsOf<kMixed>& args, const ResidualShared<G, kMixed>& shared, int part) {
    const int dim = part * G::kPartDims + G::Layout::Dim(plane(), slot());
    // Word offset of this thread's share in ScTables::residuals, for activation level 0; unsigned, so that adding it to
    // a pointer is one instruction.
    const auto row_of = [&](int mask_bits) {
      return static_cast<uint32_t>((dim & mask_bits) * kResidualLevels * kResidualWords + share() * kShareWords);
    };
    const uint32_t row = row_of(args.masks - 1);
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      const uint32_t code = shared.codes[n][dim / 4] >> (dim % 4 * 8) & 0xff;
      const uint32_t* from = args.residuals + (row + (code & 0x7f) * kResidualWords);
      if constexpr (kMixed) {
        const LookupTable& table = args.lengths.tables[shared.slots[n]];
        from = table.residuals + (row_of(table.mask_bits) + (code & 0x7f) * kResidualWords);
      }
      if constexpr (kShareWords == 4) {
        const uint4 v = LoadTable(from);
        words_[0][n] = v.x;
        words_[1][n] = v.y;
        words_[2][n] = v.z;
        words_[3][n] = v.w;
      } else {
        const uint2 v = LoadTablePair(from);
        words_[0][n] = v.x;
        words_[1][n] = v.y;
      }
      negative_ |= (code >> 7) << n;
    }
  }

  __device__ __forceinline__ void Write(uint8_t* table) const {
    uint8_t* to = table + plane() * G::Layout::kPlaneBytes + share() * kShareWords * 8 * G::Layout::kLevelBytes +
                  slot() * G::Layout::kEntryBytes;
#pragma unroll
    for (int k = 0; k < kShareWords; ++k) {
      uint32_t entries[G::kTiles][8];
#pragma unroll
      for (int n = 0; n < G::kTiles; ++n) {
        uint32_t eight[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          eight[i] = G::kInt8 ? ResidualNumbers(words_[k][n * 8 + i]) : words_[k][n * 8 + i];
        }
        TransposeNibbles(eight, entries[n]);
      }
      // An xor mask that complements the residual of every negative activation.
      uint32_t flip[G::kTiles];
#pragma unroll
      for (int n = 0; n < G::kTiles; ++n) flip[n] = Nibbles(negative_ >> (8 * n) & 0xff) & kUsed;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        uint8_t* at = to + (k * 8 + i) * G::Layout::kLevelBytes;
        if constexpr (kTokens == 8) {
          const uint32_t entry = entries[0][i] ^ flip[0];
          *reinterpret_cast<uint32_t*>(at) = entry;
          *reinterpret_cast<uint32_t*>(at + G::Layout::kNegative) = entry ^ kUsed;
        } else {
          const uint2 entry = make_uint2(entries[0][i] ^ flip[0], entries[1][i] ^ flip[1]);
          *reinterpret_cast<uint2*>(at) = entry;
          *reinterpret_cast<uint2*>(at + G::Layout::kNegative) = make_uint2(entry.x ^ kUsed, entry.y ^ kUsed);
        }
      }
    }
  }

 private:
  static constexpr int kShareWords = kResidualWords * G::kPartDims / kThreads;
  static constexpr int kShares = kResidualWords / kShareWords;
  static constexpr uint32_t kUsed = G::kInt8 ? 0x77777777u : 0xffffffffu;  // bits of an entry
  static_assert(kShares * G::kPartDims == kThreads);
  uint32_t words_[kShareWords][kTokens];
  uint32_t negative_ = 0;  // bit n: the activation of token n is negative

  // The thread's slot and plane of the table, which give its dimension (TableLayout::Dim), and its share of the levels.
  static __device__ int slot() { return static_cast<int>(threadIdx.x % G::Layout::kSlots); }
  static __device__ int plane() { return static_cast<int>(threadIdx.x / G::Layout::kSlots % G::Layout::kPlanes); }
  static __device__ int share() { return static_cast<int>(threadIdx.x / G::kPartDims); }
  // Widens each of eight bits to a nibble: 15 if the bit is set, else 0.
  static __device__ __forceinline__ uint32_t Nibbles(uint32_t bits) {
    uint32_t r = (bits | bits << 12) & 0x000f000fu;
    r = (r | r << 6) & 0x03030303u;
    r = (r | r << 3) & 0x11111111u;
    return r * 15;
  }
};

// Sums of the int8 products are kept times 1 << kTermShift: codes then need only be masked, not shifted right.
inline constexpr int kTermShift = kResidualShifts.back();

// Writes the factors of a part of the staged codes, as operand B fragments, to shared.factors, and each token's
// constant to shared.start: minus half the sum, over the part's dimensions, of 7 - (sum of the dimension's factors). By
// all threads of the block, each with four dimensions of a token.
template <typename G, bool kMixed = false>
__device__ void StageFactors(const ArgsOf<kMixed>& args, ResidualShared<G, kMixed>& shared, int part) {
  constexpr int kTokens = G::kTokens;
  static_assert(kTokens * G::kPartWords <= kThreads);
  const auto token = static_cast<int>(threadIdx.x / G::kPartWords);
  const auto word = static_cast<int>(threadIdx.x % G::kPartWords);
  if (token >= kTokens) return;  // whole warps leave
  const uint32_t codes = shared.codes[token][part * G::kPartWords + word];
  const uint32_t* from = args.factors;
  int mask_bits = args.masks - 1;
  if constexpr (kMixed) {
    const LookupTable& table = args.lengths.tables[shared.slots[token]];
    from = table.factors;
    mask_bits = table.mask_bits;
  }
  uint32_t factors[4];
  int32_t rest = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int dim = part * G::kPartDims + word * 4 + j;
    const uint32_t code = codes >> (8 * j) & 0xff;
    const uint32_t f = __ldg(from + (static_cast<uint32_t>((dim & mask_bits) * kResidualLevels) + (code & 0x7f)));
    factors[j] = code >> 7 != 0 ? __vneg4(f) : f;
    rest += kMaxResidual - __dp4a(static_cast<int>(factors[j]), 0x01010101, 0);
  }
  rest /= 2;  // exact: the sum of a level's factors is odd, so 7 - sum is even
  uint32_t terms[4];
  Transpose(factors[0], factors[1], factors[2], factors[3], terms);
  const int lane = token % kTileTokens * 4 + word % 8 / 2;
#pragma unroll
  for (int k = 0; k < kResidualTerms; ++k) {
    constexpr std::array<int, kResidualTerms> kShifts = kResidualShifts;
    const int shift = kTermShift - kShifts[k];
    const uint32_t kept = (0xffu << shift & 0xffu) * 0x01010101u;
    shared.factors[(word / 8 * kResidualTerms + k) * G::kTiles + token / kTileTokens][lane][word % 2] =
        terms[k] << shift & kept;
  }
#pragma unroll
  for (int step = 1; step < G::kPartWords; step *= 2) rest += __shfl_xor_sync(kAllLanes, rest, step);
  if (word == 0) shared.start[token] = -rest;
}

}  // namespace stoch::cuda::batch_table
