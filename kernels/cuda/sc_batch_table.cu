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
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sc_batch_outputs.cuh"

namespace stoch::cuda {
namespace {

constexpr int kTokens = kMaxBatchTableTokens;
static_assert(kTokens == kTileTokens);
constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarp;
constexpr int kChunkDims = 128;
constexpr int kWords = kChunkDims / 4;  // of a token's codes of a chunk
constexpr int kGroups = 2;
constexpr int kUnitRows = kGroups * kGroupRows;  // a warp's at a time
constexpr int kBias = 63;
constexpr int kMaxCount = 127 + kBias;  // largest count whose biased value fits a byte with either sign

// The table: [plane][level][slot] entries of 8 bytes. Dimension 16 p + 4 t + j of a chunk (t, j < 4) lies in plane p,
// slot 4 j + t: the 16 lanes that shared memory serves at a time are four rows with four words t each, and as row r
// starts with byte r % 4 of its words, they read 16 slots, all banks once.
constexpr int kPlanes = 8;
constexpr int kEntryBytes = kTokens;
constexpr int kSlots = 16;
constexpr int kLevelBytes = kSlots * kEntryBytes;  // 128: all banks
constexpr int kPlaneBytes = 128 * kLevelBytes;
constexpr int kTableBytes = kPlanes * kPlaneBytes;

struct TableArgs {
  BatchOutputs outputs;
  const uint8_t* counts = nullptr;
  int masks = 1;
  int levels = 128;
  GridBarrier barrier;
};

struct Stage {
  uint8_t* table;
  uint32_t (*codes)[kWords];  // [kTokens]
};

// prmt with sign replication: a selector digit 8 + i is bit 7 of byte i, eight times.
__device__ __forceinline__ uint32_t PermuteSigns(uint32_t word, uint32_t selector) {
  uint32_t r;
  asm("prmt.b32 %0, %1, 0, %2;\n" : "=r"(r) : "r"(word), "r"(selector));
  return r;
}
__device__ __forceinline__ uint32_t ByteSigns(uint32_t word) { return PermuteSigns(word, 0xba98); }

// d += A B. A: bytes of rows lane / 4 (a[0], a[2]) and 8 + lane / 4 (a[1], a[3]), inner 0..15 and 16..31.
__device__ __forceinline__ void MultiplyAdd(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint2 LookUp(uint32_t address, int plane) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n"
               : "=r"(v.x), "=r"(v.y)
               : "r"(address + static_cast<uint32_t>(plane * kPlaneBytes)));
  return v;
}

// Codes of a chunk; unused tokens and dimensions get 0, whose counts are 0.
__device__ void StageCodes(const TableArgs& args, int64_t chunk, const Stage& stage) {
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kWords; i += kThreads) {
    const int token = i / kWords;
    const int d = i % kWords * 4;
    uint32_t codes = 0;
    if (token < args.outputs.a.rows && d < args.outputs.dims.chunk_padded(chunk)) {
      codes = *reinterpret_cast<const uint32_t*>(args.outputs.a.codes + token * args.outputs.a.dims.padded +
                                                 chunk * args.outputs.dims.chunk_stride + d);
    }
    stage.codes[token][i % kWords] = codes;
  }
}

// Words of four tokens' bytes become words of one byte position: out[j] = byte j of a, b, c, d.
__device__ __forceinline__ void Transpose(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t (&out)[4]) {
  const uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  out[0] = __byte_perm(ab_low, cd_low, 0x5410);
  out[1] = __byte_perm(ab_low, cd_low, 0x7632);
  out[2] = __byte_perm(ab_high, cd_high, 0x5410);
  out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

// The table of the staged codes. A thread turns 16 levels of one dimension: a row of the count table for each token in,
// 16 entries out; half a warp writes the 16 slots of a level at a time.
__device__ void BuildTable(const TableArgs& args, const Stage& stage) {
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
      rows[n] = __ldg(reinterpret_cast<const uint4*>(mask_counts + static_cast<int>(code & 0x7f) * args.levels));
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

// A lane's codes of a unit (one chunk of kUnitRows rows): word lane % 4 of row lane / 4 of every 8 rows in every tile.
// A warp's load is then 128 bytes in a row. With 16 bytes of a tile for a lane, loads would be a fourth as many, but
// each would take 16 turns of the memory pipe, which look-ups need.
struct Unit {
  const uint8_t* codes = nullptr;  // of the first 8 rows in tile 0
  int tiles = 0;                   // of the chunk
};
__device__ __forceinline__ Unit UnitAt(const TableArgs& args, int chunk, int row_block, int lane) {
  const BatchTask& task = BatchTaskOf(args.outputs, row_block * kGroups);
  const int row = (row_block * kGroups - task.first_group) * kGroupRows;
  const int64_t tile =
      row / kTileRows * (args.outputs.dims.padded / kTileDims) + chunk * (args.outputs.dims.chunk_stride / kTileDims);
  return {task.codes + tile * kTileBytes + row % kTileRows * kTileDims + lane * 4,
          static_cast<int>(args.outputs.dims.chunk_padded(chunk) / kTileDims)};
}
// Half u of a unit: [2 * group + i][k]: rows lane / 4 + 8 i in tile 4 u + k.
using Half = uint32_t[2 * kGroups][4];
__device__ __forceinline__ void LoadHalf(Half& half, const Unit& unit, int u) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int r = 0; r < 2 * kGroups; ++r) {
      half[r][k] = 0;
      if (4 * u + k < unit.tiles) {
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1];"
                     : "=r"(half[r][k])
                     : "l"(unit.codes + (4 * u + k) * kTileBytes + r * 8 * kTileDims));
      }
    }
  }
}

// What a lane needs for its look-ups: how byte (i + its row) % 4 of a word, looked up i-th, is taken out.
struct Lane {
  uint32_t address[4];     // of level 0 in plane 0
  uint32_t level_of[4];    // dp4a operand: level * kLevelBytes
  int32_t sign_of[4];      // dp4a operand
  uint32_t select[2];      // B of the summing mma: 1 where byte and token meet
  uint32_t correct[2][4];  // B of the correcting mma, [u][word]: 126 s_x - 1
  int32_t start[2];        // 63 sum(s_x) of tokens 2 * (lane % 4) and the next
};
__device__ __forceinline__ Lane MakeLane(const Stage& stage) {
  Lane r;
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(stage.table));
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t byte = (i + lane / 4) % 4;
    r.address[i] = base + (byte * 4 + lane % 4) * kEntryBytes;
    r.level_of[i] = static_cast<uint32_t>(kLevelBytes) << (8 * byte);
    r.sign_of[i] = 1 << (8 * byte);
  }
  const uint32_t token = lane / 4;
  r.select[0] = token < 4 ? 1u << (8 * token) : 0;
  r.select[1] = token < 4 ? 0 : 1u << (8 * (token - 4));
  return r;
}
__device__ __forceinline__ void LoadCorrection(const Stage& stage, Lane& lane) {
  const int token = static_cast<int>(threadIdx.x) % kWarp / 4;
  const int t = static_cast<int>(threadIdx.x) % 4;
  int negative = 0;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t codes = stage.codes[token][u * 16 + k * 4 + t];
      negative += __popc(codes & 0x80808080u);
      lane.correct[u][k] = 0x7d7d7d7du ^ (ByteSigns(codes) & 0xfcfcfcfcu);  // 125 or -127
    }
  }
  negative += __shfl_xor_sync(kAllLanes, negative, 1);
  negative += __shfl_xor_sync(kAllLanes, negative, 2);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    lane.start[j] = kBias * (kChunkDims - 2 * __shfl_sync(kAllLanes, negative, (2 * t + j) * 4));
  }
}

// Adds four tiles (half u of a unit) to the sums of its rows.
template <int kU>
__device__ __forceinline__ void AddHalf(const Half& codes, const Lane& lane, int32_t (&sum)[kGroups][4]) {
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
          const uint2 b = LookUp(__dp4a(levels[2 * g + j], lane.level_of[i], lane.address[i]), 4 * kU + k);
          // All ones where the weight is negative, by the multiply pipe: the logic pipe has the flips to do.
          const auto flip =
              static_cast<uint32_t>(__dp4a(static_cast<int>(signs[g][k % 2 * 2 + j]), lane.sign_of[i], 0));
          a[j] = b.x ^ flip;
          a[2 + j] = b.y ^ flip;
        }
        MultiplyAdd(sum[g], a, lane.select);
      }
    }
    if (k % 2 == 0) continue;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const uint32_t b[2] = {lane.correct[kU][k - 1], lane.correct[kU][k]};
      MultiplyAdd(sum[g], signs[g], b);
    }
  }
}

// Units of one chunk x kUnitRows rows, numbered chunk by chunk; each block takes a range of them, so that it builds few
// tables. The sums of chunks go to memory; once every block has written its own, all of them scale and add.
__global__ void __launch_bounds__(kThreads, 1) ScBatchTableKernel(const __grid_constant__ TableArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t codes[kTokens][kWords];
  const Stage stage{shared, codes};
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row_blocks = args.outputs.groups / kGroups;
  const int64_t units = args.outputs.dims.chunks * row_blocks;
  const int begin = static_cast<int>(blockIdx.x * units / gridDim.x);
  const int end = static_cast<int>((blockIdx.x + 1) * units / gridDim.x);
  const int last_chunk = (end - 1) / row_blocks;

  StartNext();
  int unit = begin + warp;
  // Units are a warp's kWarps apart, all but the last of a chunk in the same one.
  const auto unit_at = [&](int unit, int chunk) {
    if (unit >= end) return Unit{};
    int row_block = unit - chunk * row_blocks;
    for (; row_block >= row_blocks; row_block -= row_blocks) ++chunk;
    return UnitAt(args, chunk, row_block, lane);
  };
  Unit current = unit_at(unit, begin / row_blocks);
  Half ring[2];
  LoadHalf(ring[0], current, 0);
  WaitForPrevious();
  Lane my = MakeLane(stage);
  for (int chunk = begin / row_blocks; chunk <= last_chunk; ++chunk) {
    __syncthreads();
    StageCodes(args, chunk, stage);
    __syncthreads();
    BuildTable(args, stage);
    LoadCorrection(stage, my);
    if (chunk == begin / row_blocks) LoadHalf(ring[1], current, 1);
    __syncthreads();
    const int first_unit = chunk * row_blocks;
    const int stop = min(end, first_unit + row_blocks);
    for (; unit < stop; unit += kWarps) {
      const int row_block = unit - first_unit;
      if (lane == 0) {  // what CombineSums will want
        const BatchTask& task = BatchTaskOf(args.outputs, row_block * kGroups);
        asm volatile("prefetch.global.L2 [%0];\n" ::"l"(task.scales + static_cast<int64_t>(chunk) * task.rows_padded +
                                                        (row_block * kGroups - task.first_group) * kGroupRows));
      }
      const Unit next = unit_at(unit + kWarps, chunk);
      int32_t sum[kGroups][4];
#pragma unroll
      for (int r = 0; r < kGroups; ++r) {
        sum[r][0] = sum[r][2] = my.start[0];
        sum[r][1] = sum[r][3] = my.start[1];
      }
      AddHalf<0>(ring[0], my, sum);
      LoadHalf(ring[0], next, 0);
      AddHalf<1>(ring[1], my, sum);
      LoadHalf(ring[1], next, 1);
      current = next;
#pragma unroll
      for (int r = 0; r < kGroups; ++r) {
        StoreSums(args.outputs, chunk, row_block * kGroups + r, lane, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
      }
    }
  }
  args.barrier.Wait();
  CombineSums<kWarps, kTableBytes>(args.outputs, shared, [] { __syncthreads(); });
}

// One block a multiprocessor, and whole chunks' worth of blocks where that leaves few multiprocessors idle: a block
// that works on two chunks builds two tables.
int PickBlocks(int sm_count, int64_t chunks, int64_t row_blocks) {
  const int64_t most = std::min<int64_t>(sm_count, (chunks * row_blocks + kWarps - 1) / kWarps);
  if (chunks > most) return static_cast<int>(most);
  const int64_t aligned = most / chunks * chunks;
  return static_cast<int>(aligned * 6 >= most * 5 ? aligned : most);
}

}  // namespace

bool ScBatchTableSupports(const DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScDims& dims,
                          int64_t rows) {
  return op.code == ScCode::kSignMagnitude && tables.counts8 != nullptr && tables.max_count <= kMaxCount &&
         tables.levels >= 16 && dims.chunk_d <= kChunkDims && rows >= 1 && rows <= kTokens &&
         ctx.max_shared_bytes >= kTableBytes + 2048;
}

void LaunchScBatchTable(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a,
                        const FiniteReporter& reporter, const ScLinearTask* tasks, int count) {
  STOCH_CHECK(count >= 1 && count <= kMaxBatchTasks && a.rows <= kTokens);
  TableArgs args;
  args.outputs = MakeBatchOutputs(tables, a, reporter, tasks, count, kUnitRows, 1);
  args.counts = tables.counts8;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.barrier = ctx.grid_barrier();
  Scratch scratch(ctx.workspace);
  args.outputs.sums = scratch.Take<uint8_t>(args.outputs.sum_bytes());
  STOCH_CUDA(cudaFuncSetAttribute(ScBatchTableKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTableBytes));
  const int blocks = PickBlocks(ctx.sm_count, args.outputs.dims.chunks, args.outputs.groups / kGroups);
  LaunchOverlapped(ctx, ScBatchTableKernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), size_t{kTableBytes},
                   args);
}

}  // namespace stoch::cuda
