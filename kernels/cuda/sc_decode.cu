#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/grid_barrier.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_factor.cuh"
#include "kernels/cuda/quantizer.cuh"
#include "kernels/cuda/sc_decode.h"

namespace stoch::cuda {
namespace {

// 12 warps of at most 80 registers: two such blocks fit on a multiprocessor, so that the next linear's weights are on
// their way while this one's last chunks are summed.
constexpr int kWarps = 12;
constexpr int kThreads = kWarps * kWarp;
constexpr int kChunkDims = 128;                      // most dimensions of a chunk
constexpr int kChunkTiles = kChunkDims / kTileDims;  // tiles of 32 rows x 16 dimensions
constexpr int kRowBytes = 128;                       // of a staged table row
constexpr int kCombineChunks = kChunkDims;           // products of an item in shared memory at a time
constexpr int kStageBytes = kChunkDims * kRowBytes;  // of a token's staged chunk

// What all blocks together prefetch: about what memory delivers while one kernel sums up and the next one quantizes.
constexpr int64_t kPrefetchBytes = int64_t{24} << 20;

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

struct DecodeArgs {
  Task tasks[kMaxDecodeTasks];
  int task_count = 0;
  ScDims dims;
  int tokens = 0;
  int row_blocks = 0;  // of all tasks
  int staged = 1;      // chunks that a block stages at a time
  int prefetched = 0;  // units that a block brings into the second-level cache ahead of its turn
  const uint8_t* counts = nullptr;
  int masks = 1;
  int levels = 128;
  int q_max = 127;
  float gain = 0;
  ScActivationView a;  // codes == nullptr: quantized here from source
  RowSource source;
  FiniteReporter reporter;
  float* products = nullptr;  // [tokens][chunks][row_blocks * 32]
  GridBarrier barrier;
};

__device__ __forceinline__ const Task& TaskOf(const DecodeArgs& args, int row_block) {
  int t = 0;
  while (t + 1 < args.task_count && row_block >= args.tasks[t + 1].first_block) ++t;
  return args.tasks[t];
}

// What a block keeps of the chunks it works on.
struct Stage {
  uint8_t* rows;      // [staged][tokens][128 dims][128] table rows
  uint8_t* codes;     // [staged][tokens][128]
  float* scales;      // [staged][tokens]
  uint8_t* top_dims;  // [staged][tokens][128] dimensions of the largest level, for counts of 256
  int* top_count;     // [staged][tokens]
};

template <int kTokens>
__device__ Stage MakeStage(uint8_t* shared, int staged) {
  Stage stage;
  stage.rows = shared;
  stage.codes = stage.rows + staged * kTokens * kStageBytes;
  stage.top_dims = stage.codes + staged * kTokens * kChunkDims;
  stage.scales = reinterpret_cast<float*>(stage.top_dims + staged * kTokens * kChunkDims);
  stage.top_count = reinterpret_cast<int*>(stage.scales + staged * kTokens);
  return stage;
}
template <int kTokens>
int StageBytes(int staged) {
  return staged * kTokens * (kStageBytes + 2 * kChunkDims + 8);
}

// Quantizes one chunk of the one row, by a warp.
template <Prologue P>
__device__ void QuantizeChunk(const DecodeArgs& args, float r, int64_t chunk, int lane, uint8_t* codes, float* scale) {
  constexpr int kPerLane = kChunkDims / kWarp;
  const int64_t begin = chunk * args.dims.chunk_d;
  const int n = static_cast<int>(args.dims.chunk_dims(chunk));
  float v[kPerLane];
  Extremes e;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) {
    const int i = lane + k * kWarp;
    v[k] = i < n ? PrologueValue<P>(args.source, args.source.x, args.source.x2, r, begin + i) : 0.0f;
    e.max_abs_bits = max(e.max_abs_bits, FloatToBits(v[k]) & 0x7fffffffu);
  }
  e.max_abs_bits = __reduce_max_sync(kAllLanes, e.max_abs_bits);
  const QuantizerParams params{ScCode::kSignMagnitude, args.q_max, 1};
  const ScopeQuantizer quantizer(params, e);
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) codes[lane + k * kWarp] = quantizer.Code(params, v[k]);
  if (lane != 0) return;
  *scale = quantizer.scale;
  if (!quantizer.finite) args.reporter.Report();
}

// Codes and scales of `count` chunks from `first` on.
template <int kTokens, bool kFused>
__device__ void StageCodes(const DecodeArgs& args, float r, int64_t first, int count, const Stage& stage) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int i = warp; i < count * kTokens; i += kWarps) {
    const int64_t chunk = first + i / kTokens;
    const int token = i % kTokens;
    uint8_t* codes = stage.codes + i * kChunkDims;
    if constexpr (kFused) {
      switch (args.source.prologue) {
        case Prologue::kNone: QuantizeChunk<Prologue::kNone>(args, r, chunk, lane, codes, stage.scales + i); break;
        case Prologue::kRmsNorm:
          QuantizeChunk<Prologue::kRmsNorm>(args, r, chunk, lane, codes, stage.scales + i);
          break;
        case Prologue::kSiluMul:
          QuantizeChunk<Prologue::kSiluMul>(args, r, chunk, lane, codes, stage.scales + i);
          break;
      }
    } else {
      const int n = token < args.tokens ? static_cast<int>(args.dims.chunk_dims(chunk)) : 0;
      const uint8_t* from = args.a.codes + token * args.a.dims.padded + chunk * args.dims.chunk_stride;
      for (int d = lane; d < kChunkDims; d += kWarp) codes[d] = d < n ? from[d] : 0;
      if (lane == 0) stage.scales[i] = n > 0 ? args.a.scales[chunk * args.a.rows + token] : 0.0f;
    }
    __syncwarp();
    // Where the largest level is: its count may be 256, which its byte cannot say.
    int found = 0;
    for (int d = lane; d < kChunkDims; d += kWarp) {
      const bool top = (codes[d] & 0x7f) == args.levels - 1;
      const unsigned ballot = __ballot_sync(kAllLanes, top);
      if (top) stage.top_dims[i * kChunkDims + found + __popc(ballot & ((1u << lane) - 1))] = static_cast<uint8_t>(d);
      found += __popc(ballot);
    }
    if (lane == 0) stage.top_count[i] = found;
  }
}

// Table rows of the staged codes.
template <int kTokens>
__device__ void StageRows(const DecodeArgs& args, int count, const Stage& stage) {
  const int rows = count * kTokens * kChunkDims;
  if (args.levels == kRowBytes) {
    constexpr int kPieces = kRowBytes / 16;
    for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += kThreads) {
      const int row = i / kPieces;
      const int64_t entry =
          static_cast<int64_t>(row % kChunkDims & (args.masks - 1)) * args.levels + (stage.codes[row] & 0x7f);
      reinterpret_cast<uint4*>(stage.rows)[i] =
          __ldg(reinterpret_cast<const uint4*>(args.counts + entry * kRowBytes) + i % kPieces);
    }
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < rows * args.levels; i += kThreads) {
    const int row = i / args.levels;
    const int64_t entry =
        static_cast<int64_t>(row % kChunkDims & (args.masks - 1)) * args.levels + (stage.codes[row] & 0x7f);
    stage.rows[row * kRowBytes + i % args.levels] = args.counts[entry * args.levels + i % args.levels];
  }
}

// One tile of a lane's row: adds counts to `all` and 128 * (counts whose product is negative) to `negative`.
__device__ __forceinline__ void AddTile(uint4 weights, const uint8_t* rows, const uint8_t* codes, unsigned& all,
                                        unsigned& negative) {
  const uint4 activations = *reinterpret_cast<const uint4*>(codes);
  const uint32_t w[4] = {weights.x, weights.y, weights.z, weights.w};
  const uint32_t a[4] = {activations.x, activations.y, activations.z, activations.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t levels = w[i] & 0x7f7f7f7fu;
    const uint32_t signs = (w[i] ^ a[i]) & 0x80808080u;
    const uint8_t* row = rows + 4 * i * kRowBytes;
    // Half of the bytes are taken out by the multiply pipe, half by the logic pipe: both are needed to keep up.
    uint32_t counts = row[__byte_perm(levels, 0, 0x4440)];
    counts += static_cast<uint32_t>(row[kRowBytes + __dp4a(levels, 0x00000100u, 0u)]) * 0x100u;
    counts += static_cast<uint32_t>(row[2 * kRowBytes + __dp4a(levels, 0x00010000u, 0u)]) * 0x10000u;
    counts += static_cast<uint32_t>(row[3 * kRowBytes + __byte_perm(levels, 0, 0x4443)]) * 0x1000000u;
    all = __dp4a(counts, 0x01010101u, all);
    negative = __dp4a(counts, signs, negative);
  }
}

// Where a warp's tiles of one chunk and 32 rows are.
struct Unit {
  const uint8_t* codes = nullptr;  // this lane's 16 bytes of the first tile
  int tiles = 0;
};
__device__ __forceinline__ Unit UnitAt(const DecodeArgs& args, int unit, int end, int lane) {
  if (unit >= end) return {};
  const int chunk = unit / args.row_blocks;
  const int row_block = unit % args.row_blocks;
  const Task& task = TaskOf(args, row_block);
  const int64_t tile =
      (row_block - task.first_block) * (args.dims.padded / kTileDims) + chunk * (args.dims.chunk_stride / kTileDims);
  return {task.codes + tile * kTileBytes + lane * kTileDims,
          static_cast<int>(args.dims.chunk_padded(chunk) / kTileDims)};
}
__device__ __forceinline__ uint4 LoadTile(const Unit& unit, int tile) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (tile < unit.tiles) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(unit.codes + tile * kTileBytes));
  }
  return v;
}

// Counts of 256 read 0 from the byte table: adds them for each weight of the largest level.
template <int kTokens>
__device__ void AddTopCounts(const DecodeArgs& args, const Unit& unit, const Stage& stage, int slot,
                             int (&acc)[kTokens]) {
#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    const int i = slot * kTokens + n;
    for (int k = 0; k < stage.top_count[i]; ++k) {
      const int d = stage.top_dims[i * kChunkDims + k];
      const uint8_t w = unit.codes[d / kTileDims * kTileBytes + d % kTileDims];
      if ((w & 0x7f) != args.levels - 1) continue;
      acc[n] += ((w ^ stage.codes[i * kChunkDims + d]) & 0x80) != 0 ? -256 : 256;
    }
  }
}

// Brings units [begin, end) into the second-level cache, a lane each: while the kernel ahead finishes and the prologue
// runs, memory stays busy.
__device__ __forceinline__ void PrefetchUnits(const DecodeArgs& args, int begin, int end) {
#if __CUDA_ARCH__ >= 900
  for (int unit = begin + static_cast<int>(threadIdx.x); unit < end; unit += kThreads) {
    const Unit at = UnitAt(args, unit, end, 0);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at.codes), "r"(at.tiles * kTileBytes) : "memory");
  }
#endif
}

// y of 32 rows and one token from products [chunks] apart by `rows`, by one warp.
__device__ __forceinline__ float SumChunks(const float* from, int64_t rows, int chunks) {
  constexpr int kInFlight = 16;
  float y = 0.0f;
  int c = 0;
  for (; c + kInFlight <= chunks; c += kInFlight) {
    float p[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) p[k] = __ldcg(from + (c + k) * rows);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) y = y + p[k];
  }
  for (; c < chunks; ++c) y = y + __ldcg(from + c * rows);
  return y;
}

__device__ __forceinline__ void StoreOutput(const DecodeArgs& args, int row_block, int token, int lane, float y) {
  const Task& task = TaskOf(args, row_block);
  const int row = (row_block - task.first_block) * kTileRows + lane;
  if (row >= task.rows) return;
  float* out = task.out + token * task.out_stride + row;
  y = task.add ? *out + y : y;
  if (!IsFinite(y)) args.reporter.Report();
  *out = y;
}

// Sums products in chunk order: items of 32 rows and a token, shared out over blocks. With few items per block all
// warps of a block fetch one item's products and one adds them up; with many, every warp has its own.
__device__ void Combine(const DecodeArgs& args, uint8_t* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t rows = static_cast<int64_t>(args.row_blocks) * kTileRows;
  const int items = args.row_blocks * args.tokens;
  const int blocks = static_cast<int>(gridDim.x);
  const int chunks = static_cast<int>(args.dims.chunks);
  const auto products_of = [&](int item) {
    return args.products + (item / args.row_blocks) * args.dims.chunks * rows + item % args.row_blocks * kTileRows +
           lane;
  };
  if (items > 2 * blocks) {
    for (int item = static_cast<int>(blockIdx.x) + warp * blocks; item < items; item += kWarps * blocks) {
      StoreOutput(args, item % args.row_blocks, item / args.row_blocks, lane,
                  SumChunks(products_of(item), rows, chunks));
    }
    return;
  }
  auto* products = reinterpret_cast<float(*)[kWarp]>(shared);
  for (int item = static_cast<int>(blockIdx.x); item < items; item += blocks) {
    const float* from = products_of(item);
    float y = 0.0f;
    for (int first = 0; first < chunks; first += kCombineChunks) {
      const int count = min(kCombineChunks, chunks - first);
#pragma unroll 12
      for (int c = warp; c < count; c += kWarps) products[c][lane] = __ldcg(from + (first + c) * rows);
      __syncthreads();
      if (warp == 0) {
#pragma unroll 16
        for (int c = 0; c < count; ++c) y = y + products[c][lane];
      }
      __syncthreads();
    }
    if (warp == 0) StoreOutput(args, item % args.row_blocks, item / args.row_blocks, lane, y);
  }
}

// A unit is one chunk of 32 weight rows, a warp's work at a time; units are numbered chunk by chunk and each block
// takes a range of them. Products of chunks go to memory; once every block has written its own, all of them sum up.
template <int kTokens, bool kFused, bool kTop256>
__global__ void __launch_bounds__(kThreads, kTokens <= 2 ? 2 : 1)
    ScDecodeKernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float fold[kRowLanes];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t units = args.dims.chunks * args.row_blocks;
  const int begin = static_cast<int>(blockIdx.x * units / gridDim.x);
  const int end = static_cast<int>((blockIdx.x + 1) * units / gridDim.x);
  const Stage stage = MakeStage<kTokens>(shared, args.staged);

  // Weights do not depend on earlier kernels: the first tiles are on their way before the activations are.
  uint4 ring[kChunkTiles];
  Unit current = UnitAt(args, begin + warp, end, lane);
#pragma unroll
  for (int t = 0; t < kChunkTiles; ++t) ring[t] = LoadTile(current, t);
  PrefetchUnits(args, begin + kWarps, min(end, begin + kWarps + args.prefetched));
  WaitForPrevious();
  float r = 0.0f;
  if constexpr (kFused) {
    if (args.source.prologue == Prologue::kRmsNorm) {
      r = NormFactor(args.source.x, args.dims.dims, args.source.norm_eps, fold);
    }
  }

  const int last_chunk = (end - 1) / args.row_blocks;
  int unit = begin + warp;
  int slot = args.staged;
  // The loop over chunks is uniform over the block, so that the compiler keeps a chunk's place in uniform registers.
  for (int chunk = begin / args.row_blocks; chunk <= last_chunk; ++chunk, ++slot) {
    if (slot == args.staged) {
      const int count = min(args.staged, last_chunk - chunk + 1);
      __syncthreads();
      StageCodes<kTokens, kFused>(args, r, chunk, count, stage);
      __syncthreads();
      StageRows<kTokens>(args, count, stage);
      __syncthreads();
      slot = 0;
    }
    const int first_unit = chunk * args.row_blocks;
    const int stop = min(end, first_unit + args.row_blocks);
    for (; unit < stop; unit += kWarps) {
      const int row_block = unit - first_unit;
      const Task& task = TaskOf(args, row_block);
      const float scale = task.scales[static_cast<int64_t>(chunk) * task.rows_padded +
                                      (row_block - task.first_block) * kTileRows + lane];
      const Unit next = UnitAt(args, unit + kWarps, end, lane);
      // The next kernel's blocks may come in, and fetch their weights, once this one's last are on their way.
      if (next.tiles == 0) StartNext();
      unsigned all[kTokens] = {};
      unsigned negative[kTokens] = {};
#pragma unroll
      for (int t = 0; t < kChunkTiles; ++t) {
        const uint4 weights = ring[t];
#pragma unroll
        for (int n = 0; n < kTokens; ++n) {
          AddTile(weights, stage.rows + (slot * kTokens + n) * kStageBytes + t * kTileDims * kRowBytes,
                  stage.codes + (slot * kTokens + n) * kChunkDims + t * kTileDims, all[n], negative[n]);
        }
        ring[t] = LoadTile(next, t);
      }
      int acc[kTokens];
#pragma unroll
      for (int n = 0; n < kTokens; ++n) acc[n] = static_cast<int>(all[n]) - static_cast<int>(negative[n] >> 6);
      if constexpr (kTop256) AddTopCounts<kTokens>(args, current, stage, slot, acc);
      current = next;
      const int64_t rows = static_cast<int64_t>(args.row_blocks) * kTileRows;
#pragma unroll
      for (int n = 0; n < kTokens; ++n) {
        if (n >= args.tokens) break;
        args.products[(n * args.dims.chunks + chunk) * rows + row_block * kTileRows + lane] =
            BipolarProduct(acc[n], args.gain, stage.scales[slot * kTokens + n], scale);
      }
    }
  }
  StartNext();
  args.barrier.Wait();
  Combine(args, shared);
}

using DecodeKernel = void (*)(DecodeArgs);

template <int kTokens>
void LaunchTokens(DeviceContext& ctx, DecodeArgs& args, int blocks, bool fused, bool top256) {
  const int64_t units = args.dims.chunks * args.row_blocks;
  const int64_t most = (units + blocks - 1) / blocks;  // units of a block
  const int64_t touched = std::min<int64_t>(args.dims.chunks, (most + args.row_blocks - 2) / args.row_blocks + 1);
  const bool aligned = units % blocks == 0 && args.row_blocks % (units / blocks) == 0;  // one chunk a block
  args.staged = aligned ? 1 : static_cast<int>(std::min<int64_t>(touched, kTokens <= 2 ? 2 : 1));
  const int shared_bytes = StageBytes<kTokens>(args.staged);
  DecodeKernel kernel = nullptr;
  if constexpr (kTokens == 1) {
    kernel = fused ? (top256 ? ScDecodeKernel<1, true, true> : ScDecodeKernel<1, true, false>)
                   : (top256 ? ScDecodeKernel<1, false, true> : ScDecodeKernel<1, false, false>);
  } else {
    kernel = top256 ? ScDecodeKernel<kTokens, false, true> : ScDecodeKernel<kTokens, false, false>;
  }
  STOCH_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  LaunchOverlapped(ctx, kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), static_cast<size_t>(shared_bytes),
                   args);
}

// How many blocks share the units: about one a multiprocessor, whole chunks' worth where that wastes little.
int PickBlocks(int sm_count, int64_t chunks, int64_t row_blocks) {
  const int64_t units = chunks * row_blocks;
  const int64_t most = std::min<int64_t>(sm_count, (units + kWarps - 1) / kWarps);
  if (chunks > most) return static_cast<int>(most);
  const int64_t aligned = most / chunks * chunks;
  return static_cast<int>(aligned * 10 >= most * 9 ? aligned : most);
}

}  // namespace

bool ScDecodeSupports(const ScOperator& op, const ScTables& tables, const ScDims& dims, int64_t rows) {
  return op.code == ScCode::kSignMagnitude && tables.counts8 != nullptr && dims.chunk_d <= kChunkDims && rows >= 1 &&
         rows <= kMaxDecodeTokens;
}

void LaunchScDecode(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const RowSource& source,
                    const FiniteReporter& reporter, const ScLinearTask* tasks, int count) {
  DecodeArgs args;
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
  const bool fused = a.codes == nullptr;
  args.tokens = fused ? 1 : static_cast<int>(a.rows);
  args.counts = tables.counts8;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.q_max = tables.q_max;
  args.gain = tables.gain;
  args.a = a;
  args.source = source;
  args.reporter = reporter;
  Scratch scratch(ctx.workspace);
  args.products = scratch.Take<float>(args.tokens * args.dims.chunks * args.row_blocks * kTileRows);

  args.barrier = ctx.grid_barrier();
  const int blocks = PickBlocks(ctx.sm_count, args.dims.chunks, args.row_blocks);
  args.prefetched = static_cast<int>(std::min<int64_t>(kPrefetchBytes, ctx.l2_bytes / 2) /
                                     (int64_t{blocks} * kChunkTiles * kTileBytes));
  if (args.tokens == 1) {
    LaunchTokens<1>(ctx, args, blocks, fused, tables.top_is_256);
  } else if (args.tokens == 2) {
    LaunchTokens<2>(ctx, args, blocks, fused, tables.top_is_256);
  } else if (args.tokens <= 4) {
    LaunchTokens<4>(ctx, args, blocks, fused, tables.top_is_256);
  } else {
    LaunchTokens<8>(ctx, args, blocks, fused, tables.top_is_256);
  }
}

}  // namespace stoch::cuda
