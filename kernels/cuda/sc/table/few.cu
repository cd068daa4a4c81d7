// SPDX-License-Identifier: Apache-2.0
// SC linears of 2 to 4 tokens: as table.cu, but the table has counts, a byte a token, and the tensor cores
// have less to do.
//
// Four bytes an entry leave room for an entry for every code, negative ones included. A signed byte cannot hold +-128,
// which counts of L = 128 reach, so an entry is
//   s_w s_x count - s_x c - [s_x > 0],   c: the weight's code as a signed byte, |w| or |w| - 128,
// which for s_x < 0 is |w| - count or |w| + count - 128 and for s_x > 0 the bitwise complement of that: always within
// -128..127 where count <= 128. What is left out is an int8 product of the weights' codes as they lie in memory with
// the signs s_x, an eighth of the work of the look-ups, and a number known per token.
//
// An int8 mma whose B operand says which byte belongs to which token adds up eight dimensions of sixteen rows at once.
// It has columns for eight tokens: both halves get the same sums, and each is stored for other rows.
//
// Bound by shared memory: one 4-byte load per 32 look-ups, a clock of an SM.
// Alternatives that lost: docs/tuning/batch.md#2-to-16-tokens.
#include <algorithm>
#include <array>

#include "kernels/cuda/sc/table/kernel.cuh"
#include "kernels/cuda/sc/table/lookup.cuh"

namespace stoch::cuda {
namespace batch_table {
namespace {

// Four values below 256 as the bytes of a word.
__device__ __forceinline__ uint32_t Bytes(const uint32_t (&values)[4]) {
  return __byte_perm(__byte_perm(values[0], values[1], 0x0040), __byte_perm(values[2], values[3], 0x0040), 0x5410);
}

// kParts_: of a chunk, one after another.
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
    uint32_t codes[kTokens][kWords];
    uint2 select[kTokens];  // B operand of the summing mma: 1 where byte and token meet
  };
  static __device__ __forceinline__ void Init(Shared& shared) {
    if (threadIdx.x >= kTokens) return;
    const uint32_t byte = 1u << (8 * threadIdx.x);
    shared.select[threadIdx.x] = make_uint2(byte, byte);
  }

  __device__ __forceinline__ FourTokens(Shared& shared, uint8_t* table)
      : shared_(shared), table_(table), places_(table) {}

  // A thread makes a quarter of the levels of one dimension, of either sign, a warp the slots of a code at a time.
  __device__ __forceinline__ void Build(const ArgsOf<kMixed>& args, int part) {
    constexpr int kBuilders = Layout::kPlanes * kCountQuarters * Layout::kSlots;
    static_assert(kBuilders * kParts == kThreads);
    part_ = part;
    if (kParts > 1 && threadIdx.x >= kBuilders) return;  // whole warps
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
    // Masks of bit 7, and of all bits if the activation is not negative.
    const uint32_t flip = Bytes(negative) * 0xffu ^ 0x7f7f7f7fu;
    const uint32_t level = static_cast<uint32_t>(quarter * kQuarterLevels) * 0x01010101u;
    // level - count + 128 and level + count: neither leaves its byte.
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

  // The first group's sums by the lanes that hold columns 0..3, the second's by the others.
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
  uint32_t signs_[kPartDims / kTileDims / 2][2];  // B of the correcting mma: s_x
  int part_ = 0;                                  // whose table is built
  int32_t start_[2];                              // [s_x > 0] of tokens 2 * (lane % 2) and the next, summed
};

// PlanScLinear says which.
using FarAhead = FourTokens<4>;
using NearAhead = FourTokens<2>;
using Small = FourTokens<2, false, 2>;  // for 99 KB of shared memory
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
  const int64_t tokens = a.tokens;
  STOCH_CHECK(tokens <= kMaxBatchFewTokens || a.codes == nullptr);  // whose scales lie by chunk
  std::array<ScLinearTask, kMaxScTasks> some;
  for (int64_t first = 0; first < tokens; first += kMaxBatchFewTokens) {
    ScActivationView rows = a;
    rows.tokens = std::min<int64_t>(kMaxBatchFewTokens, tokens - first);
    RowSource of_rows = source;
    of_rows.x += first * source.x_stride;
    if (source.x2 != nullptr) of_rows.x2 += first * source.x2_stride;
    for (int i = 0; i < count; ++i) {
      some[static_cast<size_t>(i)] = tasks[i];
      some[static_cast<size_t>(i)].out.data += first * tasks[i].out.stride;
    }
    launch(ctx, plan, tables, rows, of_rows, reporter, some.data(), count);
  }
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
