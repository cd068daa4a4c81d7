// SPDX-License-Identifier: Apache-2.0
// The look-ups of SC linears of 5 to 16 tokens: table.cu, and int8_table.cu for GPUs that emulate binary products.
#pragma once

#include "kernels/cuda/sc/table/kernel.cuh"
#include "kernels/cuda/sc/table/residual.cuh"

namespace stoch::cuda::batch_table {

// The Table class (kernel.cuh) for 5 to 16 tokens, whose table entries are residuals. G_: its sizes, a Geometry.
template <typename G_, bool kMixed_ = false>
class ResidualLookups {
 public:
  static constexpr bool kMixed = kMixed_;
  using G = G_;
  static constexpr int kTokens = G::kTokens;
  static constexpr int kTiles = G::kTiles;
  static constexpr int kParts = G::kParts;
  static constexpr int kTableBytes = G::Layout::kBytes;
  static constexpr bool kFourTokens = false;
  static constexpr int kAtOnce = kTokens == 8 ? 1 : 2;
  // Measured: the other value costs 1 % of a step if kParts is 1, and 2 % if it is 2.
  static constexpr int kRingPairs = kParts == 1 ? 4 : 2;
  using Shared = ResidualShared<G, kMixed>;

  // Accumulators of the residuals of 32 rows: one has 16 rows x 8 tokens, or 8 rows x 16 tokens.
  static constexpr int kCounted = kTokens == 8 ? kGroups : 2 * kGroups;
  // Sets of kCounted accumulators. With two sets, the second of the two products has a set of its own, so that an mma
  // waits less for the one before (1 %).
  static constexpr int kApart = kTokens == 8 ? 2 : 1;
  // Bits by which the residual sum of partial k must be shifted right. Partials of odd k are of odd tokens, whose
  // residuals int8 products take from the upper halves of bytes, so their sums are 16 times too large.
  static __device__ __forceinline__ int Shift(int k) { return G::kInt8 && k % 2 == 1 ? 4 : 0; }
  struct Sums {
    int32_t counts[kApart][kCounted][4];  // sums of residuals
    int32_t terms[kGroups][kTiles][4];    // sums of the three products, times 1 << kTermShift

    // Partial k of the accumulator of group g and tile n (BatchOutputs::partials).
    __device__ __forceinline__ int32_t Total(int g, int n, int k) const {
      const int32_t term = terms[g][n][k] >> kTermShift;
      if constexpr (kTokens == 8) return ((counts[0][g][k] + counts[1][g][k]) >> Shift(k)) + term;
      return (counts[0][2 * g + k / 2][2 * n + k % 2] >> Shift(k)) + term;
    }
  };

  static __device__ __forceinline__ void Init(Shared& shared) {
    if (threadIdx.x >= 2 * kTileTokens) return;
    const bool second = threadIdx.x >= kTileTokens;
    const uint32_t token = threadIdx.x % kTileTokens;
    // kInt8: even tokens take the bytes less their upper halves, odd ones the upper halves.
    const uint32_t factor = token % 2 == 0 ? (second ? 0xffu : 1u) : (second ? 1u : 0u);
    const uint32_t mask = G::kInt8 ? factor << (token / 2 * 8) : (second ? 0xeu : 0xfu) << (token * 4);
    shared.masks[second][token] = make_uint2(mask, mask);
  }

  __device__ __forceinline__ ResidualLookups(Shared& shared, uint8_t* table)
      : shared_(shared), table_(table), places_(table) {}

  __device__ __forceinline__ void Build(const ArgsOf<kMixed>& args, int part) const {
    TableShare<G, kMixed> share;
    share.Load(args, shared_, part);
    StageFactors<G, kMixed>(args, shared_, part);
    share.Write(table_);
  }

  // Loads the operands B of the counting mma and the first kKept factor fragments into registers; the other factors and
  // `start` stay in shared memory.
  __device__ __forceinline__ void Begin() {
    const int column = static_cast<int>(threadIdx.x) % kWarp / 4;
    LoadTwice(shared_.masks[0][column], first_);
    LoadTwice(shared_.masks[1][column], second_);
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      kept_factors_[i] = *reinterpret_cast<const uint2*>(shared_.factors[i][threadIdx.x % kWarp]);
  }

  __device__ __forceinline__ void Start(Sums& sums) const {
    int2 start[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      start[n] =
          *reinterpret_cast<const int2*>(shared_.start + n * kTileTokens + static_cast<int>(threadIdx.x) % 4 * 2);
    }
#pragma unroll
    for (int r = 0; r < kCounted; ++r) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int2& from = start[kTokens == 8 ? 0 : k / 2];
        sums.counts[0][r][k] = (k % 2 == 0 ? from.x : from.y) << Shift(k);
        if constexpr (kApart == 2) sums.counts[1][r][k] = 0;
      }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums.terms[g][n][k] = 0;
      }
    }
  }

  template <int kQ>
  __device__ __forceinline__ void AddPair(const Codes& codes, Sums& sums) const {
    constexpr int kPair = kQ % (kUnitPairs / kParts);
    constexpr int kPlaneBytes = G::Layout::kPlaneBytes;
    if constexpr (kTokens == 8) {
      places_.LookUpPair(codes, kPair * kPlaneBytes, [&](int g, const uint32_t(&a)[4]) {
        AddFirst(sums.counts[0][g], a);
        AddSecond(sums.counts[1][g], a);
      });
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        places_.LookUpHalf(codes, half, (2 * kPair + half) * kPlaneBytes, [&](const uint32_t(&a)[2 * kGroups][4]) {
#pragma unroll
          for (int r = 0; r < kCounted; ++r) AddFirst(sums.counts[0][r], a[r]);
#pragma unroll
          for (int r = 0; r < kCounted; ++r) AddSecond(sums.counts[0][r], a[r]);
        });
      }
    }
    AddTerms(codes, kPair, sums);
  }

  __device__ __forceinline__ void Store(uint2* to, uint32_t group_stride, const Sums& sums) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        to[g * group_stride + n * kWarp] =
            PackPartials(sums.Total(g, n, 0), sums.Total(g, n, 1), sums.Total(g, n, 2), sums.Total(g, n, 3));
      }
    }
  }

 private:
  Shared& shared_;
  uint8_t* table_;
  LookupPlaces<typename G::Layout> places_;
  static constexpr int kKept = kTokens == 8 ? 5 : 3;  // factor fragments that fit in registers; others are loaded again
  uint2 kept_factors_[kKept];
  uint32_t first_[2], second_[2];  // operands B of the two products that sum entries (Init)

  __device__ __forceinline__ void AddFirst(int32_t (&d)[4], const uint32_t (&a)[4]) const {
    if constexpr (G::kInt8) {
      MultiplyAddUnsigned<0xffffffffu>(d, a, first_);
    } else {
      CountAdd(d, a, first_);
    }
  }
  __device__ __forceinline__ void AddSecond(int32_t (&d)[4], const uint32_t (&a)[4]) const {
    if constexpr (G::kInt8) {
      MultiplyAddUnsigned<0xf0f0f0f0u>(d, a, second_);
    } else {
      CountAdd(d, a, second_);
    }
  }
  // Adds the three int8 products of a pair of weight tiles to sums.terms.
  __device__ __forceinline__ void AddTerms(const Codes& codes, int pair, Sums& sums) const {
    uint32_t signed_codes[kGroups][4];  // codes as signed bytes; a negative one is the complement of its level
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t code = codes[2 * g + j % 2][j / 2];
        signed_codes[g][j] = code ^ (ByteSigns(code) & 0x7f7f7f7fu);
      }
    }
#pragma unroll
    for (int k = 0; k < kResidualTerms; ++k) {
      constexpr std::array<int, kResidualTerms> kShifts = kResidualShifts;
      const uint32_t kept = (0xffu << kShifts[k] & 0xffu) * 0x01010101u;
      uint32_t a[kGroups][4];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int j = 0; j < 4; ++j) a[g][j] = signed_codes[g][j] & kept;
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int at = (pair * kResidualTerms + k) * kTiles + n;
        const uint2 f =
            at < kKept ? kept_factors_[at] : *reinterpret_cast<const uint2*>(shared_.factors[at][threadIdx.x % kWarp]);
        const uint32_t b[2] = {f.x, f.y};
#pragma unroll
        for (int g = 0; g < kGroups; ++g) MultiplyAdd(sums.terms[g][n], a[g], b);
      }
    }
  }
};

// Returns the function that launches a plan's kernel. kInt8: int8 mma sum table entries; else binary mma do.
template <bool kMixed, bool kInt8>
auto TableLaunch(const LinearPlan& plan) {
  using Eight = ResidualLookups<Geometry<8, 1, kInt8>, kMixed>;
  using EightSmall = ResidualLookups<Geometry<8, 2, kInt8>, kMixed>;  // for blocks of 99 KB of shared memory
  using Sixteen = ResidualLookups<Geometry<16, 2, kInt8>, kMixed>;
  // Static shared memory that the kernel adds to Shared: 1024 bytes are enough with RowQuantizer, 512 without (kMixed).
  constexpr int kAdded = kMixed ? 512 : 1024;
  static_assert(kMaxBatchTableTokens == Sixteen::kTokens);
  static_assert(sizeof(typename Eight::Shared) + kAdded <= kEightStaticBytes);
  static_assert(sizeof(typename Sixteen::Shared) + kAdded <= kSixteenStaticBytes);
  static_assert(sizeof(typename EightSmall::Shared) + 256 <= kEightSmallStaticBytes);
  const bool is_sixteen = plan.tile_tokens == Sixteen::kTokens, is_eight = plan.shared_bytes == kSharedBytes<Eight>;
  if constexpr (kMixed) {
    return is_sixteen ? LaunchMixedTable<Sixteen> : is_eight ? LaunchMixedTable<Eight> : LaunchMixedTable<EightSmall>;
  } else {
    return is_sixteen ? LaunchTable<Sixteen> : is_eight ? LaunchTable<Eight> : LaunchTable<EightSmall>;
  }
}

// TableLaunch<., true>, compiled in int8_table.cu.
decltype(&LaunchTable<ResidualLookups<Geometry<8, 1, true>>>) Int8TableLaunch(const LinearPlan& plan);
decltype(&LaunchMixedTable<ResidualLookups<Geometry<8, 1, true>, true>>) Int8MixedTableLaunch(const LinearPlan& plan);

}  // namespace stoch::cuda::batch_table
