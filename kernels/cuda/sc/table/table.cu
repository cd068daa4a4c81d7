// SPDX-License-Identifier: Apache-2.0
// SC linears of 5 to 16 tokens: one look-up per weight for all tokens, summed by tensor cores.
//
// A count is a sum of three products of small integers and a residual of 0..7 (kernels/sc/sc_residual.h;
// docs/fast-kernels.md#a-few-tokens-one-lookup-for-all-of-them). The tensor cores compute the products as int8 mma. The
// residuals, four bits a token, are looked up: shared memory has a table for a part of a chunk, with an entry for every
// code of every dimension. Entries are operand A of a binary mma whose operand B selects the bits of each token. That
// mma runs twice, because three of the four bits count double.
//
// Bound by shared memory, 128 bytes a clock: one clock for 32 weights of 8 tokens.
// Alternatives that lost: docs/tuning/batch.md#2-to-16-tokens.
#include "kernels/cuda/sc/table/kernel.cuh"
#include "kernels/cuda/sc/table/residual.cuh"

namespace stoch::cuda {
namespace batch_table {
namespace {

// The Table (kernel.cuh) of residuals, for the sizes G_ (Geometry).
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
  static constexpr int kRingPairs =
      kParts == 1 ? 4 : 2;  // measured: the other value costs 1 % (kParts 1) and 2 % of a step
  using Shared = ResidualShared<G, kMixed>;

  // Binary mma accumulators of a unit's 32 rows: one has 16 rows x 8 tokens, or 8 rows x 16 tokens.
  static constexpr int kCounted = kTokens == 8 ? kGroups : 2 * kGroups;
  // Sets of kCounted accumulators. With two sets, the bits that count double have a set of their own, so that an mma
  // waits less for the one before (1 %).
  static constexpr int kApart = kTokens == 8 ? 2 : 1;
  struct Sums {
    int32_t counts[kApart][kCounted][4];  // sums of residuals
    int32_t terms[kGroups][kTiles][4];    // sums of the three products, times 1 << kTermShift

    // Partial k of the accumulator of group g and tile n (BatchOutputs::partials).
    __device__ __forceinline__ int32_t Total(int g, int n, int k) const {
      const int32_t term = terms[g][n][k] >> kTermShift;
      if constexpr (kTokens == 8) return counts[0][g][k] + counts[1][g][k] + term;
      return counts[0][2 * g + k / 2][2 * n + k % 2] + term;
    }
  };

  static __device__ __forceinline__ void Init(Shared& shared) {
    if (threadIdx.x >= 2 * kTileTokens) return;
    const uint32_t mask = (threadIdx.x < kTileTokens ? 0xfu : 0xeu) << (threadIdx.x % kTileTokens * 4);
    shared.masks[threadIdx.x / kTileTokens][threadIdx.x % kTileTokens] = make_uint2(mask, mask);
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
    LoadTwice(shared_.masks[0][column], all_);
    LoadTwice(shared_.masks[1][column], double_);
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
        sums.counts[0][r][k] = k % 2 == 0 ? from.x : from.y;
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
        CountAdd(sums.counts[0][g], a, all_);
        CountAdd(sums.counts[1][g], a, double_);
      });
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        places_.LookUpHalf(codes, half, (2 * kPair + half) * kPlaneBytes, [&](const uint32_t(&a)[2 * kGroups][4]) {
#pragma unroll
          for (int r = 0; r < kCounted; ++r) CountAdd(sums.counts[0][r], a[r], all_);
#pragma unroll
          for (int r = 0; r < kCounted; ++r) CountAdd(sums.counts[0][r], a[r], double_);
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
  uint32_t all_[2], double_[2];  // operands B that select all bits of a token, and its bits that count double

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

using EightTokens = ResidualLookups<Geometry<8, 1>>;
using EightTokensSmall = ResidualLookups<Geometry<8, 2>>;  // for GPUs whose blocks have 99 KB of shared memory
using SixteenTokens = ResidualLookups<Geometry<16, 2>>;
using MixedEightTokens = ResidualLookups<Geometry<8, 1>, true>;
using MixedEightTokensSmall = ResidualLookups<Geometry<8, 2>, true>;
using MixedSixteenTokens = ResidualLookups<Geometry<16, 2>, true>;
static_assert(kMaxBatchTableTokens == SixteenTokens::kTokens);
static_assert(sizeof(EightTokens::Shared) + 1024 <= kEightStaticBytes);
static_assert(sizeof(SixteenTokens::Shared) + 1024 <= kSixteenStaticBytes);
static_assert(sizeof(EightTokensSmall::Shared) + 256 <= kEightSmallStaticBytes);
static_assert(sizeof(MixedEightTokensSmall::Shared) + 256 <= kEightSmallStaticBytes);
// Static shared memory that the kernel adds to Shared: 1024 bytes are enough with RowQuantizer, 512 without (kMixed).
static_assert(sizeof(MixedEightTokens::Shared) + 512 <= kEightStaticBytes);
static_assert(sizeof(MixedSixteenTokens::Shared) + 512 <= kSixteenStaticBytes);

}  // namespace
}  // namespace batch_table

void LaunchScBatchTable(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                        const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count) {
  using namespace batch_table;  // NOLINT(google-build-using-namespace): of this file
  const auto launch = plan.tile_tokens == SixteenTokens::kTokens       ? LaunchTable<SixteenTokens>
                      : plan.shared_bytes == kSharedBytes<EightTokens> ? LaunchTable<EightTokens>
                                                                       : LaunchTable<EightTokensSmall>;
  launch(ctx, plan, tables, a, source, reporter, tasks, count);
}

void LaunchScBatchTableMixed(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables,
                             const LookupLengths& lengths, const ScActivationView& a, const SiteReporter& reporter,
                             const ScLinearTask* tasks, int count) {
  using namespace batch_table;  // NOLINT(google-build-using-namespace): of this file
  const auto launch = plan.tile_tokens == MixedSixteenTokens::kTokens       ? LaunchMixedTable<MixedSixteenTokens>
                      : plan.shared_bytes == kSharedBytes<MixedEightTokens> ? LaunchMixedTable<MixedEightTokens>
                                                                            : LaunchMixedTable<MixedEightTokensSmall>;
  launch(ctx, plan, tables, lengths, a, reporter, tasks, count);
}

}  // namespace stoch::cuda
