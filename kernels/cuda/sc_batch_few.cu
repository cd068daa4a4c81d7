// SC linears of 2 to 4 tokens: as sc_batch_table.cu, but a look-up gets a word and nothing is left to do with it.
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
// Per 32 look-ups: one 4-byte shared load (1 clock of a multiprocessor's shared memory, which is what bounds the
// kernel), one IDP, a fourth of a SEL, five sixteenths of an IMMA, a fourth of a load of codes.
#include "kernels/cuda/sc_batch_table.cuh"

namespace stoch::cuda {
namespace batch_table {
namespace {

// The table: [plane][code][slot] entries of 4 bytes. Dimension 32 p + 16 q + 4 t + j of a chunk (q < 2; t, j < 4) lies
// in plane p, slot 16 q + 4 j + t: the 32 lanes of a look-up are eight rows with four words t each. Row r starts with
// byte r % 4 of its words, and rows 4 to 7 start with tile q = 1, so they read 32 slots, all banks once.
constexpr int kPlanes = 4;
constexpr int kEntryBytes = 4;
constexpr int kSlots = 32;
constexpr int kLevelBytes = kSlots * kEntryBytes;  // 128: all banks
constexpr int kNegative = 128 * kLevelBytes;       // from a level's entries to those of its negative
constexpr int kPlaneBytes = 2 * kNegative;

__device__ __forceinline__ uint32_t LookUp(uint32_t address, int plane) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(v) : "r"(address + static_cast<uint32_t>(plane * kPlaneBytes)));
  return v;
}

// What a lane needs for its look-ups: how byte (i + its row) % 4 of a word, looked up i-th, is taken out.
class FourTokens {
 public:
  static constexpr int kTokens = kMaxBatchFewTokens;
  static constexpr int kTableBytes = kPlanes * kPlaneBytes;
  static constexpr int kMaxCount = 128;

  explicit __device__ __forceinline__ FourTokens(const Stage& stage) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(stage.table));
    second_first_ = lane >= 16;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t byte = (i + lane / 4) % 4;
      level_of_[i] = static_cast<uint32_t>(kLevelBytes) << (8 * byte);
      Pin(level_of_[i]);
#pragma unroll
      for (uint32_t q = 0; q < 2; ++q) {
        address_[i][q] = base + ((q ^ lane / 16) * 16 + byte * 4 + lane % 4) * kEntryBytes;
        Pin(address_[i][q]);
      }
    }
    select_[0] = select_[1] = 1u << (8 * (lane / 4 % kTokens));
    Pin(select_[0]);
    Pin(select_[1]);
  }

  // The table of the staged codes: a thread makes a quarter of the levels of one dimension, of either sign, a warp the
  // 32 slots of a code at a time.
  static __device__ void Build(const TableArgs& args, const Stage& stage) {
    static_assert(kThreads == kPlanes * kCountQuarters * kSlots);
    const int slot = static_cast<int>(threadIdx.x) % kSlots;
    const int quarter = static_cast<int>(threadIdx.x) / kSlots % kCountQuarters;
    const int plane = static_cast<int>(threadIdx.x) / (kSlots * kCountQuarters);
    const Quarters<kTokens> counts(args, stage, plane * 32 + slot / 16 * 16 + slot % 4 * 4 + slot % 16 / 4, quarter);
    uint8_t* to = stage.table + plane * kPlaneBytes + quarter * kQuarterLevels * kLevelBytes + slot * kEntryBytes;
    uint32_t rise[4];
    Transpose(counts.rises[0], counts.rises[1], counts.rises[2], counts.rises[3], rise);
    // Of bit 7, and of all where the activation is not negative.
    const uint32_t flip = Bytes(counts.negative) * 0xffu ^ 0x7f7f7f7fu;
    const uint32_t level = static_cast<uint32_t>(quarter * kQuarterLevels) * 0x01010101u;
    // level - count + 128 and level + count: neither leaves its byte.
    uint32_t plus = (level | 0x80808080u) - Bytes(counts.first);
    uint32_t minus = level + Bytes(counts.first);
#pragma unroll
    for (int i = 0; i < kQuarterLevels; ++i) {
      *reinterpret_cast<uint32_t*>(to + i * kLevelBytes) = plus ^ flip;
      *reinterpret_cast<uint32_t*>(to + kNegative + i * kLevelBytes) = minus ^ flip;
      const uint32_t up = rise[i / 8] >> (i % 8) & 0x01010101u;
      plus = plus + 0x01010101u - up;
      minus = minus + 0x01010101u + up;
    }
  }

  __device__ __forceinline__ void LoadCorrection(const Stage& stage) {
    const int token = static_cast<int>(threadIdx.x) % kWarp / 4 % kTokens;
    const int t = static_cast<int>(threadIdx.x) % 4;
    int negative = 0;
#pragma unroll
    for (int k = 0; k < kChunkDims / kTileDims; ++k) {
      const uint32_t codes = stage.codes[token][k * 4 + t];
      negative += __popc(codes & 0x80808080u);
      signs_[k / 2][k % 2] = ByteSigns(codes) | 0x01010101u;
    }
    negative += __shfl_xor_sync(kAllLanes, negative, 1);
    negative += __shfl_xor_sync(kAllLanes, negative, 2);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      start_[j] = kChunkDims - __shfl_sync(kAllLanes, negative, (2 * t + j) % kTokens * 4);
    }
  }

  __device__ __forceinline__ void Start(int32_t (&sum)[kGroups][4]) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      sum[g][0] = sum[g][2] = start_[0];
      sum[g][1] = sum[g][3] = start_[1];
    }
  }

  // Adds four tiles (half u of a unit) to the sums of its rows.
  template <int kU>
  __device__ __forceinline__ void AddHalf(const Half& codes, int32_t (&sum)[kGroups][4]) const {
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int plane = 2 * kU + p;
      uint32_t words[2 * kGroups][2];  // in the order in which the lane's row looks them up
#pragma unroll
      for (int r = 0; r < 2 * kGroups; ++r) {
        words[r][0] = second_first_ ? codes[r][2 * p + 1] : codes[r][2 * p];
        words[r][1] = second_first_ ? codes[r][2 * p] : codes[r][2 * p + 1];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          uint32_t a[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            a[j] = LookUp(__dp4a(words[2 * g + j % 2][j / 2], level_of_[i], address_[i][j / 2]), plane);
          }
          MultiplyAdd(sum[g], a, select_);
        }
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const uint32_t a[4] = {codes[2 * g][2 * p], codes[2 * g + 1][2 * p], codes[2 * g][2 * p + 1],
                               codes[2 * g + 1][2 * p + 1]};
        MultiplyAdd(sum[g], a, signs_[plane]);
      }
    }
  }

  // The first group's sums by the lanes that hold columns 0..3, the second's by the others.
  __device__ __forceinline__ void Store(const BatchOutputs& outputs, int chunk, int row_block,
                                        const int32_t (&sum)[kGroups][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    int32_t own[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) own[j] = lane % 4 < 2 ? sum[0][j] : sum[1][j];
    StoreSums(outputs, chunk, row_block, lane, own[0], own[1], own[2], own[3]);
  }

 private:
  uint32_t address_[4][2];                         // of code 0 in plane 0
  uint32_t level_of_[4];                           // dp4a operand: code * kLevelBytes
  bool second_first_;                              // of two tiles
  uint32_t select_[2];                             // B of the summing mma: 1 where byte and token meet
  uint32_t signs_[kChunkDims / kTileDims / 2][2];  // B of the correcting mma: s_x
  int32_t start_[2];                               // [s_x > 0] of tokens 2 * (lane % 2) and the next, summed
};

}  // namespace
}  // namespace batch_table

bool ScBatchFewSupports(const DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScDims& dims,
                        int64_t rows) {
  return batch_table::TableSupports<batch_table::FourTokens>(ctx, op, tables, dims, rows);
}

void LaunchScBatchFew(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const RowSource& source,
                      const FiniteReporter& reporter, const ScLinearTask* tasks, int count) {
  batch_table::LaunchTable<batch_table::FourTokens>(ctx, tables, a, source, reporter, tasks, count);
}

}  // namespace stoch::cuda
