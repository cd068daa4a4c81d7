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
// kernel), one IDP, one PRMT, two LOP3, one IMMA (1.7 clocks).
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sc_batch.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kTokens = kMaxBatchTableTokens;
constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarp;
constexpr int kChunkDims = 128;
constexpr int kWords = kChunkDims / 4;           // of a token's codes of a chunk
constexpr int kGroupRows = 8;                    // weight rows of an mma
constexpr int kGroups = kTileRows / kGroupRows;  // of a unit
constexpr int kBias = 63;
constexpr int kMaxCount = 127 + kBias;  // largest count whose biased value fits a byte with either sign

// The table: [plane][level][slot] entries of 8 bytes. Dimension 64 u + 16 t + 4 k + j of a chunk (t, k, j < 4) lies in
// plane 4 u + k, slot 4 j + t: the 16 lanes that shared memory serves at a time are four rows with four tiles t each,
// and as row r starts with byte r % 4 of its words, they read 16 slots, all banks once.
constexpr int kPlanes = 8;
constexpr int kEntryBytes = kTokens;
constexpr int kSlots = 16;
constexpr int kLevelBytes = kSlots * kEntryBytes;  // 128: all banks
constexpr int kPlaneBytes = 128 * kLevelBytes;
constexpr int kTableBytes = kPlanes * kPlaneBytes;

struct Task {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int rows = 0;
  int rows_padded = 0;
  int first_block = 0;  // of its row blocks (32 rows) among those of all tasks
  bool add = false;
};

struct TableArgs {
  Task tasks[kMaxBatchTasks];
  int task_count = 0;
  ScDims dims;
  int row_blocks = 0;  // of all tasks
  const uint8_t* counts = nullptr;
  int masks = 1;
  int levels = 128;
  float gain = 0;
  ScActivationView a;
  FiniteReporter reporter;
  // [chunks][row groups of 8][tokens][8 rows] sums of chunks: int16 holds 128 counts of up to kMaxCount, and half the
  // bytes are half the time they take through the second-level cache.
  int16_t* sums = nullptr;
  GridBarrier barrier;
};

struct Stage {
  uint8_t* table;
  uint32_t (*codes)[kWords];  // [kTokens]
};

__device__ __forceinline__ const Task& TaskOf(const TableArgs& args, int row_block) {
  int t = 0;
  while (t + 1 < args.task_count && row_block >= args.tasks[t + 1].first_block) ++t;
  return args.tasks[t];
}

// prmt with sign replication: a selector digit 8 + i is bit 7 of byte i, eight times.
__device__ __forceinline__ uint32_t PermuteSigns(uint32_t word, uint32_t selector) {
  uint32_t r;
  asm("prmt.b32 %0, %1, 0, %2;\n" : "=r"(r) : "r"(word), "r"(selector));
  return r;
}
__device__ __forceinline__ uint32_t ByteSigns(uint32_t word) { return PermuteSigns(word, 0xba98); }

// d += A B: rows 0..7 of A in a0 (inner 0..15), a2 (16..31); rows 8..15 are not used.
__device__ __forceinline__ void MultiplyAdd(int32_t (&d)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1));
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
    if (token < args.a.rows && d < args.dims.chunk_padded(chunk)) {
      codes = *reinterpret_cast<const uint32_t*>(args.a.codes + token * args.a.dims.padded +
                                                 chunk * args.dims.chunk_stride + d);
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
    const int dim = plane / 4 * 64 + slot % 4 * 16 + plane % 4 * 4 + slot / 4;
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

// A lane's codes of a unit (one chunk of 32 rows): row lane / 4 of every group, tiles lane % 4 and 4 + lane % 4.
struct Unit {
  const uint8_t* codes = nullptr;  // of group 0, tile lane % 4
  int tiles = 0;                   // that exist from there on
};
__device__ __forceinline__ Unit UnitAt(const TableArgs& args, int unit, int end, int lane) {
  if (unit >= end) return {};
  const int chunk = unit / args.row_blocks;
  const int row_block = unit % args.row_blocks;
  const Task& task = TaskOf(args, row_block);
  const int64_t tile = (row_block - task.first_block) * (args.dims.padded / kTileDims) +
                       chunk * (args.dims.chunk_stride / kTileDims) + lane % 4;
  return {task.codes + tile * kTileBytes + lane / 4 * kTileDims,
          static_cast<int>(args.dims.chunk_padded(chunk) / kTileDims) - lane % 4};
}
__device__ __forceinline__ void LoadHalf(uint4 (&half)[kGroups], const Unit& unit, int u) {
#pragma unroll
  for (int r = 0; r < kGroups; ++r) {
    half[r] = make_uint4(0, 0, 0, 0);
    if (4 * u < unit.tiles) {
      asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(half[r].x), "=r"(half[r].y), "=r"(half[r].z), "=r"(half[r].w)
                   : "l"(unit.codes + u * 4 * kTileBytes + r * kGroupRows * kTileDims));
    }
  }
}

// What a lane needs for its look-ups: how byte (i + its row) % 4 of a word, looked up i-th, is taken out.
struct Lane {
  uint32_t address[4];     // of level 0 in plane 0
  uint32_t level_of[4];    // dp4a operand: level * kLevelBytes
  uint32_t sign_of[4];     // prmt selector
  uint32_t select[2];      // A of the summing mma: 1 where byte and token meet
  uint32_t correct[2][4];  // A of the correcting mma, [u][word]: 126 s_x - 1
  int32_t start;           // 63 sum(s_x) of token lane / 4
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
    r.sign_of[i] = 0x8888 + 0x1111 * byte;
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
      const uint32_t codes = stage.codes[token][u * 16 + t * 4 + k];
      negative += __popc(codes & 0x80808080u);
      lane.correct[u][k] = 0x7d7d7d7du ^ (ByteSigns(codes) & 0xfcfcfcfcu);  // 125 or -127
    }
  }
  negative += __shfl_xor_sync(kAllLanes, negative, 1);
  negative += __shfl_xor_sync(kAllLanes, negative, 2);
  lane.start = kBias * (kChunkDims - 2 * negative);
}

__device__ __forceinline__ uint32_t WordOf(const uint4& v, int k) {
  return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}

// Adds four tiles (half u of a unit) to the sums of its 32 rows.
template <int kU>
__device__ __forceinline__ void AddHalf(const uint4 (&codes)[kGroups], const Lane& lane, int32_t (&sum)[kGroups][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t levels[kGroups];
#pragma unroll
    for (int r = 0; r < kGroups; ++r) levels[r] = WordOf(codes[r], k) & 0x7f7f7f7fu;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int r = 0; r < kGroups; ++r) {
        const uint2 b = LookUp(__dp4a(levels[r], lane.level_of[i], lane.address[i]), 4 * kU + k);
        const uint32_t flip = PermuteSigns(WordOf(codes[r], k), lane.sign_of[i]);
        MultiplyAdd(sum[r], lane.select[0], lane.select[1], b.x ^ flip, b.y ^ flip);
      }
    }
    if (k % 2 == 0) continue;
#pragma unroll
    for (int r = 0; r < kGroups; ++r) {
      MultiplyAdd(sum[r], lane.correct[kU][k - 1], lane.correct[kU][k], ByteSigns(WordOf(codes[r], k - 1)),
                  ByteSigns(WordOf(codes[r], k)));
    }
  }
}

// Scales and adds the chunks of 8 rows and all tokens in order; lane: token lane / 4, rows 2 * (lane % 4) and the next.
__device__ void CombineGroup(const TableArgs& args, int group, int lane) {
  constexpr int kInFlight = 16;
  const int token = lane / 4;
  const int row_block = group / kGroups;
  const Task& task = TaskOf(args, row_block);
  const int row = (row_block - task.first_block) * kTileRows + group % kGroups * kGroupRows + lane % 4 * 2;
  const bool used = token < args.a.rows;
  const int chunks = static_cast<int>(args.dims.chunks);
  const int64_t groups = static_cast<int64_t>(args.row_blocks) * kGroups;
  const auto* sums = reinterpret_cast<const uint32_t*>(args.sums) + group * kWarp + lane;
  const float* scales_a = args.a.scales + (used ? token : 0);
  float y[2] = {};
  for (int first = 0; first < chunks; first += kInFlight) {
    uint32_t sum[kInFlight];
    float scale_a[kInFlight];
    float2 scale_b[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t c = min(first + k, chunks - 1);
      sum[k] = __ldcg(sums + c * groups * kWarp);
      scale_a[k] = __ldg(scales_a + c * args.a.rows);
      scale_b[k] = __ldg(reinterpret_cast<const float2*>(task.scales + c * task.rows_padded + row));
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (first + k >= chunks) break;
      const int low = static_cast<int16_t>(sum[k] & 0xffff);
      const int high = static_cast<int16_t>(sum[k] >> 16);
      y[0] = y[0] + BipolarProduct(low, args.gain, scale_a[k], scale_b[k].x);
      y[1] = y[1] + BipolarProduct(high, args.gain, scale_a[k], scale_b[k].y);
    }
  }
  if (!used) return;
  float* to = task.out + token * task.out_stride + row;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (row + i >= task.rows) break;
    if (task.add) y[i] = to[i] + y[i];
    if (!IsFinite(y[i])) args.reporter.Report();
    to[i] = y[i];
  }
}

// Units of one chunk x 32 rows, numbered chunk by chunk; each block takes a range of them, so that it builds few
// tables. The sums of chunks go to memory; once every block has written its own, all of them scale and add.
__global__ void __launch_bounds__(kThreads, 1) ScBatchTableKernel(const __grid_constant__ TableArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t codes[kTokens][kWords];
  const Stage stage{shared, codes};
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t units = args.dims.chunks * args.row_blocks;
  const int begin = static_cast<int>(blockIdx.x * units / gridDim.x);
  const int end = static_cast<int>((blockIdx.x + 1) * units / gridDim.x);
  const int last_chunk = (end - 1) / args.row_blocks;

  StartNext();
  int unit = begin + warp;
  Unit current = UnitAt(args, unit, end, lane);
  uint4 ring[2][kGroups];
  LoadHalf(ring[0], current, 0);
  WaitForPrevious();
  Lane my = MakeLane(stage);
  for (int chunk = begin / args.row_blocks; chunk <= last_chunk; ++chunk) {
    __syncthreads();
    StageCodes(args, chunk, stage);
    __syncthreads();
    BuildTable(args, stage);
    LoadCorrection(stage, my);
    if (chunk == begin / args.row_blocks) LoadHalf(ring[1], current, 1);
    __syncthreads();
    const int first_unit = chunk * args.row_blocks;
    const int stop = min(end, first_unit + args.row_blocks);
    for (; unit < stop; unit += kWarps) {
      const int row_block = unit - first_unit;
      const Task& task = TaskOf(args, row_block);
      if (lane == 0) {  // what CombineGroup will want
        asm volatile("prefetch.global.L2 [%0];\n" ::"l"(task.scales + static_cast<int64_t>(chunk) * task.rows_padded +
                                                        (row_block - task.first_block) * kTileRows));
      }
      const Unit next = UnitAt(args, unit + kWarps, end, lane);
      int32_t sum[kGroups][4];
#pragma unroll
      for (int r = 0; r < kGroups; ++r) {
        sum[r][0] = sum[r][1] = my.start;
        sum[r][2] = sum[r][3] = 0;
      }
      AddHalf<0>(ring[0], my, sum);
      LoadHalf(ring[0], next, 0);
      AddHalf<1>(ring[1], my, sum);
      LoadHalf(ring[1], next, 1);
      current = next;
      auto* to = reinterpret_cast<uint32_t*>(args.sums) + static_cast<int64_t>(unit) * kGroups * kWarp + lane;
#pragma unroll
      for (int r = 0; r < kGroups; ++r) {
        to[r * kWarp] = __byte_perm(static_cast<uint32_t>(sum[r][0]), static_cast<uint32_t>(sum[r][1]), 0x5410);
      }
    }
  }
  args.barrier.Wait();
  const int groups = args.row_blocks * kGroups;
  for (int group = static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x); group < groups;
       group += kWarps * static_cast<int>(gridDim.x)) {
    CombineGroup(args, group, lane);
  }
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
  for (int i = 0; i < count; ++i) {
    const ScWeightView& w = tasks[i].weight;
    args.tasks[i] = {w.codes,
                     w.scales,
                     tasks[i].out.data,
                     tasks[i].out.stride,
                     static_cast<int>(w.rows),
                     static_cast<int>(w.rows_padded),
                     args.row_blocks,
                     tasks[i].out.add};
    args.row_blocks += static_cast<int>((w.rows + kTileRows - 1) / kTileRows);
  }
  args.task_count = count;
  args.dims = tasks[0].weight.dims;
  args.counts = tables.counts8;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.gain = tables.gain;
  args.a = a;
  args.reporter = reporter;
  args.barrier = ctx.grid_barrier();
  Scratch scratch(ctx.workspace);
  args.sums = scratch.Take<int16_t>(args.dims.chunks * args.row_blocks * kTileRows * kTokens);
  STOCH_CUDA(cudaFuncSetAttribute(ScBatchTableKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kTableBytes));
  const int blocks = PickBlocks(ctx.sm_count, args.dims.chunks, args.row_blocks);
  LaunchOverlapped(ctx, ScBatchTableKernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), size_t{kTableBytes},
                   args);
}

}  // namespace stoch::cuda
