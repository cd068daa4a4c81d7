// SPDX-License-Identifier: Apache-2.0
// SC linears of 2 to 4 tokens: one look-up per weight for all tokens, summed by tensor cores, as in table.cu. Here a
// table entry holds the signed counts themselves, a byte a token, so the tensor cores have fewer products.
//
// The table in shared memory has a 4-byte entry for every code of every dimension, negative codes included. A signed
// byte cannot hold +-128, which counts of L = 128 reach, so with s_w and s_x the signs of weight and activation, a byte
// is
//   s_w s_x count - s_x c - [s_x > 0],   c: the weight's code as a signed byte, |w| or |w| - 128.
// For s_x < 0 that is |w| - count or |w| + count - 128, for s_x > 0 its bitwise complement: within -128..127 if count
// <= 128. The two terms left out are added apart: s_x c by int8 mma of the weights' codes as they lie in memory with
// the signs s_x, one mma for every four that sum look-ups, and [s_x > 0] as one sum per token.
//
// An int8 mma whose operand B selects each token's byte sums eight dimensions of 16 rows at once. It has eight columns,
// of which tokens need four: columns 0 to 3 and 4 to 7 get equal sums, and the lanes of each half store different rows.
//
// Bound by shared memory: a warp's load of 4 bytes a lane looks up 32 weights and takes one clock of the SM.
// Alternatives that lost: docs/tuning/batch.md#2-to-16-tokens.
#include "kernels/cuda/sc/table/kernel.cuh"
#include "kernels/cuda/sc/table/lookup.cuh"

namespace stoch::cuda {
namespace batch_table {
namespace {

// Packs four values below 256 into the bytes of a word, values[0] lowest.
__device__ __forceinline__ uint32_t Bytes(const uint32_t (&values)[4]) {
  return __byte_perm(__byte_perm(values[0], values[1], 0x0040), __byte_perm(values[2], values[3], 0x0040), 0x5410);
}

// The Table class (kernel.cuh) for up to four tokens, whose table entries are made of counts. kRingPairs_: see Ring.
// kParts_: parts of a chunk, each with a table of its own, one after another. kMixed_: tokens have stream lengths of
// their own.
template <int kRingPairs_, bool kMixed_ = false, int kParts_ = 1>
class FourTokens {
 public:
  static constexpr bool kMixed = kMixed_;
  static constexpr int kTokens = kMaxBatchFewTokens;
  static constexpr int kTiles = 1;
  static constexpr int kParts = kParts_;
  static constexpr int kPartDims = kChunkDims / kParts;
  static constexpr bool kFourTokens = true;
  static constexpr int kAtOnce = 1;
  static constexpr int kRingPairs = kRingPairs_;
  static constexpr int kMaxCount = 128;
  using Layout = TableLayout<kTokens, kPartDims>;
  static constexpr int kTableBytes = Layout::kBytes;
  using Sums = int32_t[kGroups][4];

  struct Shared : TokenSlots<kTokens, kMixed> {
    uint32_t codes[kTokens][kWords];  // the chunk's activations, four codes a word
    uint2 select[kTokens];            // operand B of the summing mma: column n is 1 in byte n of a word, else 0
  };
  static __device__ __forceinline__ void Init(Shared& shared) {
    if (threadIdx.x >= kTokens) return;
    const uint32_t byte = 1u << (8 * threadIdx.x);
    shared.select[threadIdx.x] = make_uint2(byte, byte);
  }

  __device__ __forceinline__ FourTokens(Shared& shared, uint8_t* table)
      : shared_(shared), table_(table), places_(table) {}

  // Builds the table of part `part` of the staged codes, by all threads of the block. A thread writes the entries of
  // one quarter of the levels, of both signs, in one dimension; a warp writes one code's entries of 32 dimensions (a
  // line of TableLayout) at a time.
  __device__ __forceinline__ void Build(const ArgsOf<kMixed>& args, int part) {
    constexpr int kBuilders = Layout::kPlanes * kCountQuarters * Layout::kSlots;
    static_assert(kBuilders * kParts == kThreads);
    part_ = part;
    if (kParts > 1 && threadIdx.x >= kBuilders) return;  // kBuilders is a multiple of 32, so whole warps leave
    const int slot = static_cast<int>(threadIdx.x) % Layout::kSlots;
    const int quarter = static_cast<int>(threadIdx.x) / Layout::kSlots % kCountQuarters;
    const int plane = static_cast<int>(threadIdx.x) / (Layout::kSlots * kCountQuarters);
    const int dim = part * kPartDims + Layout::Dim(plane, slot);
    const auto row_of = [&](int n) {
      if constexpr (kMixed) {
        const LookupTable& table = args.lengths.tables[shared_.slots[n]];
        return table.quarters + (dim & table.mask_bits) * args.levels * kCountQuarters + quarter;
      }
      return args.quarters + (dim & (args.masks - 1)) * args.levels * kCountQuarters + quarter;
    };
    uint32_t rises[kTokens], first[kTokens], negative[kTokens];
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      const uint32_t code = shared_.codes[n][dim / 4] >> (dim % 4 * 8) & 0xff;
      const uint2 v = LoadTablePair(row_of(n) + (code & 0x7f) * kCountQuarters);
      negative[n] = code >> 7;
      rises[n] = v.x;
      first[n] = v.y;
    }
    uint8_t* to = table_ + plane * Layout::kPlaneBytes + quarter * kQuarterLevels * Layout::kLevelBytes +
                  slot * Layout::kEntryBytes;
    uint32_t rise[4];
    Transpose(rises[0], rises[1], rises[2], rises[3], rise);
    // An xor mask per byte. 0x80 subtracts the 128 that `plus` and `minus` are above the entry of a negative
    // activation; 0x7f, if the activation is not negative, also complements the byte.
    const uint32_t flip = Bytes(negative) * 0xffu ^ 0x7f7f7f7fu;
    const uint32_t level = static_cast<uint32_t>(quarter * kQuarterLevels) * 0x01010101u;
    // Per byte: level - count + 128 for weights of positive sign, level + count for negative ones; no byte carries into
    // the next.
    uint32_t plus = (level | 0x80808080u) - Bytes(first);
    uint32_t minus = level + Bytes(first);
#pragma unroll
    for (int i = 0; i < kQuarterLevels; ++i) {
      *reinterpret_cast<uint32_t*>(to + i * Layout::kLevelBytes) = plus ^ flip;
      *reinterpret_cast<uint32_t*>(to + Layout::kNegative + i * Layout::kLevelBytes) = minus ^ flip;
      const uint32_t up = rise[i / 8] >> (i % 8) & 0x01010101u;
      plus = plus + 0x01010101u - up;
      minus = minus + 0x01010101u + up;
    }
  }

  __device__ __forceinline__ void Begin() {
    LoadTwice(shared_.select[threadIdx.x % kWarp / 4 % kTokens], select_);
    const int token = static_cast<int>(threadIdx.x) % kWarp / 4 % kTokens;
    const int t = static_cast<int>(threadIdx.x) % 4;
    int negative = 0;
#pragma unroll
    for (int k = 0; k < kPartDims / kTileDims; ++k) {
      const uint32_t codes = shared_.codes[token][part_ * (kPartDims / 4) + k / 2 * 8 + 2 * t + k % 2];
      negative += __popc(codes & 0x80808080u);
      signs_[k / 2][k % 2] = ByteSigns(codes) | 0x01010101u;
    }
    negative += __shfl_xor_sync(kAllLanes, negative, 1);
    negative += __shfl_xor_sync(kAllLanes, negative, 2);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      start_[j] = kPartDims - __shfl_sync(kAllLanes, negative, (2 * t + j) % kTokens * 4);
    }
  }

  __device__ __forceinline__ void Start(Sums& sums) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      sums[g][0] = sums[g][2] = start_[0];
      sums[g][1] = sums[g][3] = start_[1];
    }
  }

  template <int kQ>
  __device__ __forceinline__ void AddPair(const Codes& codes, Sums& sums) const {
    constexpr int kPair = kQ % (kUnitPairs / kParts);
    places_.LookUpPair(codes, kPair * Layout::kPlaneBytes,
                       [&](int g, const uint32_t(&a)[4]) { MultiplyAdd(sums[g], a, select_); });
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const uint32_t a[4] = {codes[2 * g][0], codes[2 * g + 1][0], codes[2 * g][1], codes[2 * g + 1][1]};
      MultiplyAdd(sums[g], a, signs_[kPair]);
    }
  }

  // Stores this lane's partials (BatchOutputs::four_tokens): lanes that hold columns 0..3 store the first group's sums,
  // the others the second group's.
  __device__ __forceinline__ void Store(uint2* to, uint32_t /*group_stride*/, const Sums& sums) const {
    const bool low = threadIdx.x % 4 < 2;
    int32_t own[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) own[j] = low ? sums[0][j] : sums[1][j];
    *to = PackPartials(own[0], own[1], own[2], own[3]);
  }

 private:
  Shared& shared_;
  uint8_t* table_;
  LookupPlaces<Layout> places_;
  uint32_t select_[2];
  uint32_t signs_[kPartDims / kTileDims / 2][2];  // operand B of the mma that adds s_x c: +1 or -1 a dimension
  int part_ = 0;                                  // part of the chunk whose table is built
  int32_t start_[2];  // sum of [s_x > 0] over the part, of tokens 2 * (lane % 2) and the next
};

// Variants of LaunchScBatchFew by the shared memory that PlanScLinear has planned.
using FarAhead = FourTokens<4>;         // weights are in flight four pairs of tiles ahead
using NearAhead = FourTokens<2>;        // weights are in flight two pairs of tiles ahead
using Small = FourTokens<2, false, 2>;  // for GPUs whose blocks have 99 KB of shared memory
using MixedFarAhead = FourTokens<4, true>;
using MixedNearAhead = FourTokens<2, true>;
using MixedSmall = FourTokens<2, true, 2>;
static_assert(sizeof(FarAhead::Shared) + 1024 <= kFewStaticBytes && FarAhead::kTokens == kMaxBatchFewTokens);

}  // namespace
}  // namespace batch_table

void LaunchScBatchFew(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables, const ScActivationView& a,
                      const RowSource& source, const SiteReporter& reporter, const ScLinearTask* tasks, int count) {
  using namespace batch_table;  // NOLINT(google-build-using-namespace): of this file
  const auto launch = plan.shared_bytes == kSharedBytes<FarAhead>    ? LaunchTable<FarAhead>
                      : plan.shared_bytes == kSharedBytes<NearAhead> ? LaunchTable<NearAhead>
                                                                     : LaunchTable<Small>;
  launch(ctx, plan, tables, a, source, reporter, tasks, count);
}

void LaunchScBatchFewMixed(DeviceContext& ctx, const LinearPlan& plan, const ScTables& tables,
                           const LookupLengths& lengths, const ScActivationView& a, const SiteReporter& reporter,
                           const ScLinearTask* tasks, int count) {
  using namespace batch_table;  // NOLINT(google-build-using-namespace): of this file
  const auto launch = plan.shared_bytes == kSharedBytes<MixedFarAhead>    ? LaunchMixedTable<MixedFarAhead>
                      : plan.shared_bytes == kSharedBytes<MixedNearAhead> ? LaunchMixedTable<MixedNearAhead>
                                                                          : LaunchMixedTable<MixedSmall>;
  launch(ctx, plan, tables, lengths, a, reporter, tasks, count);
}

}  // namespace stoch::cuda
