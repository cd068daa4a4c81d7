// The frame of the kernels that look up one weight for all tokens (sc_batch_table.cu, sc_batch_few.cu): the table of a
// chunk of dimensions stays in shared memory while weights stream past it.
#pragma once

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sc_batch_table_stage.cuh"

namespace stoch::cuda::batch_table {

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

// The same with A's bytes without a sign.
__device__ __forceinline__ void MultiplyAddUnsigned(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Keeps a value in its register: the compiler would rather compute a lane's constants anew for every unit.
__device__ __forceinline__ void Pin(uint32_t& value) { asm volatile("" : "+r"(value)); }

// A lane's codes of a unit (one chunk of kUnitRows rows): word lane % 4 of row lane / 4 of every 8 rows in every tile.
// A warp's load is then 128 bytes in a row. With 16 bytes of a tile for a lane, loads would be a fourth as many, but
// each would take 16 turns of the memory pipe, which look-ups need.
struct Unit {
  const uint8_t* codes = nullptr;  // of the first 8 rows in tile 0
  const float* scales = nullptr;   // of the first row
  int tiles = 0;                   // of the chunk; none past the block's last unit
};
static_assert(kUnitRows == kTileRows);

// The units of a warp, kWarps apart. Most steps stay in a chunk and a task and only add to addresses.
class Walk {
 public:
  Unit unit;

  __device__ __forceinline__ Walk(const TableArgs& args, int index, int end, int lane)
      : index_(index), end_(end), lane_(lane), row_blocks_(args.outputs.groups / kGroups) {
    chunk_ = index / row_blocks_;
    row_block_ = index % row_blocks_;
    Locate(args);
  }
  __device__ __forceinline__ void Step(const TableArgs& args) {
    index_ += kWarps;
    row_block_ += kWarps;
    if (row_block_ < run_end_) {
      unit.codes += args.outputs.dims.padded * (kWarps * kUnitRows);
      unit.scales += kWarps * kUnitRows;
      if (index_ >= end_) unit.tiles = 0;
      return;
    }
    for (; row_block_ >= row_blocks_; row_block_ -= row_blocks_) ++chunk_;
    Locate(args);
  }

 private:
  int index_, end_, lane_, row_blocks_;
  int chunk_, row_block_;
  int run_end_ = 0;  // of the row blocks of the task

  __device__ __forceinline__ void Locate(const TableArgs& args) {
    unit = {};
    run_end_ = 0;
    if (index_ >= end_) return;
    const ScDims& dims = args.outputs.dims;
    const BatchTask& task = BatchTaskOf(args.outputs, row_block_ * kGroups);
    const int first = task.first_group / kGroups;
    run_end_ = first + (task.rows + kUnitRows - 1) / kUnitRows;
    const int own = row_block_ - first;
    const int64_t tile = own * (dims.padded / kTileDims) + chunk_ * (dims.chunk_stride / kTileDims);
    unit.codes = task.codes + tile * kTileBytes + lane_ * 4;
    unit.scales = task.scales + static_cast<int64_t>(chunk_) * task.rows_padded + own * kUnitRows;
    unit.tiles = static_cast<int>(dims.chunk_padded(chunk_) / kTileDims);
  }
};

// Half u of a unit: [2 * group + i][k]: rows lane / 4 + 8 i in tile 4 u + k.
//
// The branch is there for what the compiler then cannot do: move the loads to the end of a unit, where it would see to
// everything else first, and where they would be waited for at once.
using Half = uint32_t[2 * kGroups][4];
__device__ __forceinline__ uint32_t LoadWord(const uint8_t* from) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.u32 %0, [%1], %2;"
               : "=r"(v)
               : "l"(from), "l"(ReadOncePolicy()));
  return v;
}
__device__ __forceinline__ void LoadHalf(Half& half, const Unit& unit, int u) {
  const uint8_t* from = unit.codes + 4 * u * kTileBytes;
  if (unit.tiles == kChunkDims / kTileDims) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int r = 0; r < 2 * kGroups; ++r) half[r][k] = LoadWord(from + k * kTileBytes + r * 8 * kTileDims);
    }
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int r = 0; r < 2 * kGroups; ++r) {
        half[r][k] = 4 * u + k < unit.tiles ? LoadWord(from + k * kTileBytes + r * 8 * kTileDims) : 0;
      }
    }
  }
}

// BatchOutputs::few.
template <typename Table>
inline constexpr bool kIsFew = Table::kTokens == kMaxBatchFewTokens;

// Units of one chunk x kUnitRows rows, numbered chunk by chunk; each block takes a range of them, so that it builds few
// tables. The sums of chunks go to memory; once every block has written its own, all of them scale and add.
//
// Tables are made from quarters of count rows (tables.h): fetching the rows themselves, 17 MB for all blocks, took 4 of
// a linear's 22 to 69 us. Tried before that: clusters of two or four blocks that make a table together and write it to
// each other; two took 4 to 7 us more for each linear and four 26 to 36. More warps with fewer registers: 4 to 10 %
// more time.
//
// Table: what a lane needs for its look-ups, and what to do with them.
//   kTokens, kTableBytes, kMaxCount (the largest that an entry holds)
//   Table(stage)           before any table is built
//   Build(args, stage)     static: the table of the staged codes, by all threads
//   LoadCorrection(stage)  what else depends on the staged codes
//   Start(sum), AddHalf<u>(half, sum), Store(outputs, chunk, row_block, sum)
template <typename Table>
__global__ void __launch_bounds__(kThreads, 1) ScBatchTableKernel(const __grid_constant__ TableArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t codes[Table::kTokens][kWords];
  const Stage stage{shared, codes};
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  // From one lane: the compiler then knows that all lanes agree, and keeps places and addresses in uniform registers.
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int row_blocks = args.outputs.groups / kGroups;
  const int64_t units = args.outputs.dims.chunks * row_blocks;
  const int begin = static_cast<int>(blockIdx.x * units / gridDim.x);
  const int end = static_cast<int>((blockIdx.x + 1) * units / gridDim.x);
  const int last_chunk = (end - 1) / row_blocks;

  StartNext();
  int unit = begin + warp;
  Walk ahead(args, unit, end, lane);
  Half ring[2];
  LoadHalf(ring[0], ahead.unit, 0);
  const int first_chunk = begin / row_blocks;
  const bool quantizes = args.outputs.a.codes == nullptr;
  RowQuantizer<Table::kTokens> quantizer(args, first_chunk, warp);
  WaitForPrevious();
  if (quantizes) quantizer.Load(stage);
  Table my(stage);
  for (int chunk = first_chunk; chunk <= last_chunk; ++chunk) {
    __syncthreads();
    if (quantizes) {
      if (chunk > first_chunk) quantizer.Next(chunk);
      quantizer.StageChunk(chunk, stage);
    } else {
      StageCodes<Table::kTokens>(args, chunk, stage);
    }
    __syncthreads();
    Table::Build(args, stage);
    my.LoadCorrection(stage);
    // Asked for before the table is made, 1.5 % more time (measured).
    if (chunk == first_chunk) LoadHalf(ring[1], ahead.unit, 1);
    __syncthreads();
    const int first_unit = chunk * row_blocks;
    const int stop = min(end, first_unit + row_blocks);
    for (; unit < stop; unit += kWarps) {
      const int row_block = unit - first_unit;
      if (lane == 0) PrefetchL2Line(ahead.unit.scales);  // what CombineSums will want
      ahead.Step(args);
      int32_t sum[kGroups][4];
      my.Start(sum);
      my.template AddHalf<0>(ring[0], sum);
      LoadHalf(ring[0], ahead.unit, 0);
      my.template AddHalf<1>(ring[1], sum);
      LoadHalf(ring[1], ahead.unit, 1);
      my.Store(args.outputs, chunk, row_block, sum);
    }
  }
  args.barrier.Wait();
  CombineSums<kWarps, Table::kTableBytes, kIsFew<Table>>(args.outputs, shared);
}

// One block a multiprocessor, and whole chunks' worth of blocks where that leaves few multiprocessors idle: a block
// that works on two chunks builds two tables.
inline int PickBlocks(int sm_count, int64_t chunks, int64_t row_blocks) {
  const int64_t most = std::min<int64_t>(sm_count, (chunks * row_blocks + kWarps - 1) / kWarps);
  if (chunks > most) return static_cast<int>(most);
  const int64_t aligned = most / chunks * chunks;
  return static_cast<int>(aligned * 6 >= most * 5 ? aligned : most);
}

// What: LaunchScBatchFew and LaunchScBatchTable.
template <typename Table>
void LaunchTable(DeviceContext& ctx, const ScTables& tables, ScActivationView a, const RowSource& source,
                 const FiniteReporter& reporter, const ScLinearTask* tasks, int count) {
  STOCH_CHECK(count >= 1 && count <= kMaxBatchTasks && a.rows <= Table::kTokens);
  Scratch scratch(ctx.workspace);
  TableArgs args;
  if (a.codes == nullptr) {
    a.dims = tasks[0].weight.dims;
    args.scales = scratch.Take<float>(a.rows * a.dims.chunks);
    a.scales = args.scales;
    args.source = source;
    args.params = {ScCode::kSignMagnitude, tables.q_max, 1};
  }
  args.outputs = MakeBatchOutputs(tables, a, reporter, tasks, count, kUnitRows, 1);
  args.outputs.few = kIsFew<Table>;
  args.quarters = tables.quarters;
  args.masks = tables.masks;
  args.levels = tables.levels;
  args.barrier = ctx.grid_barrier();
  args.outputs.sums = scratch.Take<uint8_t>(args.outputs.sum_bytes());
  STOCH_CUDA(
      cudaFuncSetAttribute(ScBatchTableKernel<Table>, cudaFuncAttributeMaxDynamicSharedMemorySize, Table::kTableBytes));
  const int blocks = PickBlocks(ctx.sm_count, args.outputs.dims.chunks, args.outputs.groups / kGroups);
  LaunchOverlapped(ctx, ScBatchTableKernel<Table>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                   size_t{Table::kTableBytes}, args);
}

// What: ScBatchFewSupports and ScBatchTableSupports.
template <typename Table>
bool TableSupports(const DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScDims& dims,
                   int64_t rows) {
  return op.code == ScCode::kSignMagnitude && tables.quarters != nullptr && tables.max_count <= Table::kMaxCount &&
         dims.chunk_d <= kChunkDims && ctx.max_shared_bytes >= Table::kTableBytes + 2048 && rows >= 1 &&
         rows <= Table::kTokens;
}

}  // namespace stoch::cuda::batch_table
