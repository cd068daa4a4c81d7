// SC linears of up to 8 tokens: one look-up per weight for all tokens, summed by tensor cores.
//
// The table of a chunk of 128 dimensions waits in shared memory: for every dimension and weight level the 8 bytes
// b = s_x (count - 63), one a token (s_x: sign of the activation). A lane looks up one weight, flips the bits of what
// it gets where the weight is negative (~b = -b - 1), and hands it as B operand to an int8 mma whose A operand only
// says which byte belongs to which token: the tensor core adds four dimensions of eight weight rows at once. What the
// bias and the flips leave over is
//   63 sum(s_x) + sum over negative weights of (1 - 126 s_x),
// the first known per token, the second an ordinary int8 product of weight signs with bytes 126 s_x - 1.
//
// Per 32 look-ups: one 8-byte shared load (2 clocks of a multiprocessor's shared memory, which is what bounds the
// kernel), two IDP, two LOP3, half an IMMA.
#include "kernels/cuda/sc_batch_table.cuh"

namespace stoch::cuda {
namespace batch_table {
namespace {

constexpr int kBias = 63;

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

  // The table of the staged codes. A thread turns 16 levels of one dimension: a row of the count table for each token
  // in, 16 entries out; half a warp writes the 16 slots of a level at a time.
  static __device__ void Build(const TableArgs& args, const Stage& stage) {
    constexpr int kPiece = 16;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int slot = lane % kSlots;
    const int pieces = args.levels / kPiece;
    const int steps = (pieces + 1) / 2;
    for (int i = static_cast<int>(threadIdx.x) / kWarp; i < kPlanes * steps; i += kWarps) {
      const int plane = i / steps;
      const int piece = i % steps * 2 + lane / kSlots;
      if (piece >= pieces) continue;
      const int dim = plane * 16 + slot % 4 * 4 + slot / 4;
      const uint8_t* mask_counts = args.counts + (dim & (args.masks - 1)) * args.levels * args.levels + piece * kPiece;
      uint4 rows[kTokens];
      uint32_t negative[kTokens];
#pragma unroll
      for (int n = 0; n < kTokens; ++n) {
        const uint32_t code = stage.codes[n][dim / 4] >> (dim % 4 * 8) & 0xff;
        negative[n] = code >> 7;
        rows[n] = LoadTable(mask_counts + static_cast<int>(code & 0x7f) * args.levels);
      }
      uint8_t* to = stage.table + plane * kPlaneBytes + piece * kPiece * kLevelBytes + slot * kEntryBytes;
#pragma unroll
      for (int w = 0; w < kPiece / 4; ++w) {
        uint32_t b[kTokens];
#pragma unroll
        for (int n = 0; n < kTokens; ++n) {
          const uint32_t counts = w == 0 ? rows[n].x : w == 1 ? rows[n].y : w == 2 ? rows[n].z : rows[n].w;
          // count - 63 and 63 - count = ~(count - 64) in bytes, by additions that never carry (count <= kMaxCount).
          b[n] = negative[n] != 0 ? (counts + 0x40404040u) ^ 0x7f7f7f7fu : (counts + 0x41414141u) ^ 0x80808080u;
        }
        uint32_t low[4], high[4];
        Transpose(b[0], b[1], b[2], b[3], low);
        Transpose(b[4], b[5], b[6], b[7], high);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          *reinterpret_cast<uint2*>(to + (4 * w + j) * kLevelBytes) = make_uint2(low[j], high[j]);
        }
      }
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
      start_[j] = kBias * (kChunkDims - 2 * __shfl_sync(kAllLanes, negative, (2 * t + j) * 4));
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
          MultiplyAdd(sum[g], a, select_);
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
  int32_t start_[2];        // 63 sum(s_x) of tokens 2 * (lane % 4) and the next
};

}  // namespace
}  // namespace batch_table

bool ScBatchTableSupports(const DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScDims& dims,
                          int64_t rows) {
  return batch_table::TableSupports<batch_table::EightTokens>(ctx, op, tables, dims, rows);
}

void LaunchScBatchTable(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a,
                        const FiniteReporter& reporter, const ScLinearTask* tasks, int count) {
  batch_table::LaunchTable<batch_table::EightTokens>(ctx, tables, a, reporter, tasks, count);
}

}  // namespace stoch::cuda
