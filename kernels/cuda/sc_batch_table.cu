// SC linears of up to 8 tokens: one look-up per weight for all tokens, summed by tensor cores.
//
// The table of a chunk of 128 dimensions waits in shared memory: for every dimension and weight level the 8 bytes
// b = s_x (count - 63), one a token (s_x: sign of the activation). A lane looks up one weight, flips the bits of what
// it gets where the weight is negative (~b = -b - 1), and hands it as A operand to an int8 mma whose B operand only
// says which byte belongs to which token: the tensor core adds four dimensions of eight weight rows at once. What the
// bias and the flips leave over is
//   63 sum(s_x) + sum over negative weights of (1 - 126 s_x),
// the first known per token, the second an ordinary int8 product of weight signs with bytes 126 s_x - 1.
// Bytes are stored as b + 128, without a sign: a table is made by adding to them, and none ever carries into the next.
//
// Per 32 look-ups: one 8-byte shared load (2 clocks of a multiprocessor's shared memory, which is what bounds the
// kernel), two IDP, two LOP3, half an IMMA.
#include "kernels/cuda/sc_batch_table.cuh"

namespace stoch::cuda {
namespace batch_table {
namespace {

constexpr int kBias = 63;
constexpr int kOffset = 128;  // makes a byte with a sign one without

// The table: [plane][level][slot] entries of 8 bytes. Dimension 16 p + 4 t + j of a chunk (t, j < 4) lies in plane p,
// slot 4 j + t: the 16 lanes that shared memory serves at a time are four rows with four words t each, and as row r
// starts with byte r % 4 of its words, they read 16 slots, all banks once.
constexpr int kPlanes = 8;
constexpr int kEntryBytes = kTileTokens;
constexpr int kSlots = 16;
constexpr int kLevelBytes = kSlots * kEntryBytes;  // 128: all banks
constexpr int kPlaneBytes = 128 * kLevelBytes;

__device__ __forceinline__ uint2 LookUp(uint32_t address, int plane) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n"
               : "=r"(v.x), "=r"(v.y)
               : "r"(address + static_cast<uint32_t>(plane * kPlaneBytes)));
  return v;
}

// What a lane needs for its look-ups: how byte (i + its row) % 4 of a word, looked up i-th, is taken out.
class EightTokens {
 public:
  static constexpr int kTokens = kMaxBatchTableTokens;
  static_assert(kTokens == kTileTokens);
  static constexpr int kTableBytes = kPlanes * kPlaneBytes;
  static constexpr int kMaxCount = 127 + kBias;  // its biased value fits a byte with either sign

  explicit __device__ __forceinline__ EightTokens(const Stage& stage) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(stage.table));
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t byte = (i + lane / 4) % 4;
      address_[i] = base + (byte * 4 + lane % 4) * kEntryBytes;
      level_of_[i] = static_cast<uint32_t>(kLevelBytes) << (8 * byte);
      sign_of_[i] = 1 << (8 * byte);
    }
    const uint32_t token = lane / 4;
    select_[0] = token < 4 ? 1u << (8 * token) : 0;
    select_[1] = token < 4 ? 0 : 1u << (8 * (token - 4));
  }

  // The table of the staged codes: a thread makes a quarter of the levels of one dimension, half a warp the 16 slots of
  // a level at a time.
  static __device__ void Build(const TableArgs& args, const Stage& stage) {
    static_assert(kThreads == kPlanes * kCountQuarters * kSlots);
    const int slot = static_cast<int>(threadIdx.x) % kSlots;
    const int quarter = static_cast<int>(threadIdx.x) / kSlots % kCountQuarters;
    const int plane = static_cast<int>(threadIdx.x) / (kSlots * kCountQuarters);
    const Quarters<kTokens> counts(args, stage, plane * 16 + slot % 4 * 4 + slot / 4, quarter);
    uint8_t* to = stage.table + plane * kPlaneBytes + quarter * kQuarterLevels * kLevelBytes + slot * kEntryBytes;
    // Four tokens' bytes a word. With kOffset, an entry is count + 65 or, as 255 - that, the complement of count + 64.
    uint32_t entry[2], flip[2], rise[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      flip[h] = Bytes(counts.negative + 4 * h) * 0xffu;
      entry[h] = Bytes(counts.first + 4 * h) + 0x41414141u - Bytes(counts.negative + 4 * h);
      Transpose(counts.rises[4 * h], counts.rises[4 * h + 1], counts.rises[4 * h + 2], counts.rises[4 * h + 3],
                rise[h]);
    }
#pragma unroll
    for (int i = 0; i < kQuarterLevels; ++i) {
      *reinterpret_cast<uint2*>(to + i * kLevelBytes) = make_uint2(entry[0] ^ flip[0], entry[1] ^ flip[1]);
#pragma unroll
      for (int h = 0; h < 2; ++h) entry[h] += rise[h][i / 8] >> (i % 8) & 0x01010101u;
    }
  }

  __device__ __forceinline__ void LoadCorrection(const Stage& stage) {
    const int token = static_cast<int>(threadIdx.x) % kWarp / 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
    int negative = 0;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t codes = stage.codes[token][u * 16 + k * 4 + t];
        negative += __popc(codes & 0x80808080u);
        correct_[u][k] = 0x7d7d7d7du ^ (ByteSigns(codes) & 0xfcfcfcfcu);  // 125 or -127
      }
    }
    negative += __shfl_xor_sync(kAllLanes, negative, 1);
    negative += __shfl_xor_sync(kAllLanes, negative, 2);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      start_[j] = kBias * (kChunkDims - 2 * __shfl_sync(kAllLanes, negative, (2 * t + j) * 4)) - kOffset * kChunkDims;
    }
  }

  __device__ __forceinline__ void Start(int32_t (&sum)[kGroups][4]) const {
#pragma unroll
    for (int r = 0; r < kGroups; ++r) {
      sum[r][0] = sum[r][2] = start_[0];
      sum[r][1] = sum[r][3] = start_[1];
    }
  }

  // Adds four tiles (half u of a unit) to the sums of its rows.
  template <int kU>
  __device__ __forceinline__ void AddHalf(const Half& codes, int32_t (&sum)[kGroups][4]) const {
    uint32_t signs[kGroups][4];  // of two words of two rows: A of the correcting mma
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t levels[2 * kGroups];
#pragma unroll
      for (int r = 0; r < 2 * kGroups; ++r) {
        levels[r] = codes[r][k] & 0x7f7f7f7fu;
        signs[r / 2][k % 2 * 2 + r % 2] = ByteSigns(codes[r][k]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          uint32_t a[4];
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const uint2 b = LookUp(__dp4a(levels[2 * g + j], level_of_[i], address_[i]), 4 * kU + k);
            // All ones where the weight is negative, by the multiply pipe: the logic pipe has the flips to do.
            const auto flip = static_cast<uint32_t>(__dp4a(static_cast<int>(signs[g][k % 2 * 2 + j]), sign_of_[i], 0));
            a[j] = b.x ^ flip;
            a[2 + j] = b.y ^ flip;
          }
          MultiplyAddUnsigned(sum[g], a, select_);
        }
      }
      if (k % 2 == 0) continue;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const uint32_t b[2] = {correct_[kU][k - 1], correct_[kU][k]};
        MultiplyAdd(sum[g], signs[g], b);
      }
    }
  }

  __device__ __forceinline__ void Store(const BatchOutputs& outputs, int chunk, int row_block,
                                        const int32_t (&sum)[kGroups][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int r = 0; r < kGroups; ++r) {
      StoreSums(outputs, chunk, row_block * kGroups + r, lane, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    }
  }

 private:
  uint32_t address_[4];     // of level 0 in plane 0
  uint32_t level_of_[4];    // dp4a operand: level * kLevelBytes
  int32_t sign_of_[4];      // dp4a operand
  uint32_t select_[2];      // B of the summing mma: 1 where byte and token meet
  uint32_t correct_[2][4];  // B of the correcting mma, [u][word]: 126 s_x - 1
  int32_t start_[2];        // 63 sum(s_x) of tokens 2 * (lane % 4) and the next, less kOffset of every dimension
};

}  // namespace
}  // namespace batch_table

bool ScBatchTableSupports(const DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScDims& dims,
                          int64_t rows) {
  return batch_table::TableSupports<batch_table::EightTokens>(ctx, op, tables, dims, rows);
}

void LaunchScBatchTable(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const RowSource& source,
                        const FiniteReporter& reporter, const ScLinearTask* tasks, int count) {
  batch_table::LaunchTable<batch_table::EightTokens>(ctx, tables, a, source, reporter, tasks, count);
}

}  // namespace stoch::cuda
