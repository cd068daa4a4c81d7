// SPDX-License-Identifier: Apache-2.0
// The plain product kernel: a block takes one row of activations and kThreads rows of weights, a thread each. If the
// call has few rows, the counts of the activation's codes are staged in shared memory; if it has many, they come from
// L1 and L2, which the blocks of other rows have filled.
#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/plain/counts.cuh"
#include "kernels/cuda/plain/formats.cuh"
#include "kernels/cuda/plain/gates.cuh"
#include "kernels/cuda/plain/product.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int64_t kMaxGridRows = 65535;

template <typename Count>
// Dimensions whose counts are staged at a time: 32 KB with 256 levels.
constexpr int kStageDims = 128 / static_cast<int>(sizeof(Count));

// The matrix of an operand that begins `rows` rows after the one of `view`.
template <typename View>
__device__ View MatrixAt(View view, int64_t rows) {
  view.codes += rows * view.dims.padded;
  view.scales += rows * view.dims.chunks;
  view.zeros += rows;
  view.sums += rows;
  return view;
}

// The operands of one thread: row n of a (activations) and row m of w (weights).
struct Operands {
  const uint8_t* a = nullptr;  // codes of row n of a
  const ScWeightView& w;
  int64_t m = 0;
  bool sign_magnitude = true;

  __device__ int level_mask() const { return sign_magnitude ? 0x7f : 0xff; }
  // Whether the product of the two codes is negative.
  __device__ bool SignsDiffer(int code_a, int code_b, int q_max) const {
    return sign_magnitude ? ((code_a ^ code_b) & 0x80) != 0 : (code_a < q_max) != (code_b < q_max);
  }
};

// The sum of one chunk: the accumulator as the register holds it, and how many products are negative (only if faults
// need it).
struct ChunkSum {
  int64_t acc = 0;
  int32_t negatives = 0;
};

// Sums the counts of chunk c for this thread's output. stage: shared memory for the counts (kStaged). Called by all
// threads of the block.
template <typename Count, bool kHardware, bool kStaged>
__device__ ChunkSum SumCounts(const PlainProduct& args, const Operands& operands, const LengthTable& table, int64_t c,
                              Count* stage) {
  const Count* counts = CountsOf<Count>(table);
  const int level_mask = operands.level_mask();
  const int sign_mask = operands.sign_magnitude ? 0x80 : 0;
  const int levels = args.lengths.levels;
  const int64_t begin = c * operands.w.dims.chunk_stride;
  const auto dims = static_cast<int>(operands.w.dims.chunk_dims(c));
  const uint8_t* a = operands.a + begin;
  const auto counts_of = [&](int d) {  // counts of the activation's code in dimension d, by the weight's level
    return counts + static_cast<int64_t>((d & table.mask_bits) * levels + (a[d] & level_mask)) * levels;
  };
  const ScAccumulatorView& accumulator = args.hardware.accumulator;
  const int group = kHardware ? accumulator.acc_group : 0;
  const bool wants_negatives = kHardware && accumulator.wants_negatives();
  int left = group;  // dimensions until the register clamps
  ChunkSum sum;
  int32_t part = 0;
  const int step = kStaged ? kStageDims<Count> : dims;
  for (int first = 0; first < dims; first += step) {
    const int some = min(step, dims - first);
    if constexpr (kStaged) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < some * levels; i += kThreads) {
        stage[i] = counts_of(first + i / levels)[i % levels];
      }
      __syncthreads();
    }
    for (int j = 0; j < some; j += kTileDims) {
      const uint4 words =
          *reinterpret_cast<const uint4*>(operands.w.codes + operands.w.code_offset(operands.m, begin + first + j));
      const auto* codes = reinterpret_cast<const uint8_t*>(&words);
      const auto count_of = [&](int k) {  // with the product's sign
        const int d = first + j + k;
        const auto* row = kStaged ? stage + (j + k) * levels : counts_of(d);
        const auto entry = static_cast<int32_t>(row[codes[k] & level_mask]);
        return ((codes[k] ^ a[d]) & sign_mask) != 0 ? -entry : entry;
      };
      if (!kHardware && j + kTileDims <= some) {
#pragma unroll
        for (int k = 0; k < kTileDims; ++k) part += count_of(k);
        continue;
      }
#pragma unroll
      for (int k = 0; k < kTileDims; ++k) {
        if (j + k >= some) break;
        part += count_of(k);
        if constexpr (kHardware) {
          if (wants_negatives && operands.SignsDiffer(a[first + j + k], codes[k], args.lengths.q_max)) ++sum.negatives;
          if (group == 0 || --left > 0) continue;
          sum.acc = accumulator.Clamp(sum.acc + part);
          part = 0;
          left = group;
        }
      }
    }
  }
  sum.acc = group > 0 ? accumulator.Clamp(sum.acc + part) : part;
  return sum;
}

// Sums chunk c for this thread's output with an adder made of gates.
__device__ ChunkSum SumGates(const PlainProduct& args, const Operands& operands, int64_t c) {
  const int64_t begin = c * operands.w.dims.chunk_stride;
  const int64_t dims = operands.w.dims.chunk_dims(c);
  GateSum sum(args.hardware.gates);
  for (int64_t d = 0; d < dims; ++d) {
    const int code = operands.w.codes[operands.w.code_offset(operands.m, begin + d)];
    sum.Add(d % args.hardware.gates.masks, operands.a[begin + d], code);
  }
  sum.End();
  return {sum.total(), 0};
}

// The accumulator of chunk c after faults, from its sum. site, fault_row: what faults are drawn by.
__device__ int32_t Finish(const PlainProduct& args, const Operands& operands, const LengthTable& table,
                          const ChunkSum& sum, uint64_t fault_row, uint64_t site, int64_t c) {
  ScAccumulatorView::Row keys;
  keys.product_key = RandomBits(SiteKey(args.hardware.seed, FaultKind::kProduct, site), 0, fault_row);
  keys.acc_key = RandomBits(SiteKey(args.hardware.seed, FaultKind::kAcc, site), 0, fault_row);
  return args.hardware.accumulator.Finish(sum.acc, sum.negatives, operands.w.dims.chunk_dims(c), table.stoc_len, keys,
                                          FaultColumn(args.site.first_chunk + c, args.site.first_output + operands.m));
}

// Writes y as output m of row `slot`, or adds it (PlainOutput::add). rows: output features.
__device__ void Store(const PlainProduct& args, int64_t slot, int64_t rows, int64_t m, float y) {
  if (args.addend != nullptr) y = y + args.addend[slot * rows + m];
  const int64_t row = args.out.order == nullptr ? slot : args.out.order[slot];
  float* out = args.out.data + blockIdx.z * args.batch.out_step + row * args.out.row_stride + m * args.out.col_stride;
  *out = args.out.add ? *out + y : y;
}

// Product in a number format (E4M3 or MXINT8), which needs no count table. Launched with a block per (kThreads rows of
// w, output row).
__global__ void __launch_bounds__(kThreads)
    FormatProductKernel(const __grid_constant__ PlainProduct args, int64_t first_row) {
  const int64_t slot = first_row + blockIdx.y;
  const int64_t n = slot / args.row_slots;
  const ScActivationView x = MatrixAt(args.a, blockIdx.z * args.batch.a_rows);
  const ScWeightView w =
      args.experts == nullptr ? MatrixAt(args.w, blockIdx.z * args.batch.w_rows) : args.experts[args.chosen[slot]];
  const int64_t m = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (m >= w.rows) return;
  float y = 0.0f;
  for (int64_t c = 0; c < w.dims.chunks; ++c) {
    const int64_t begin = c * w.dims.chunk_stride;
    const auto dims = static_cast<int>(w.dims.chunk_dims(c));
    const uint8_t* a = x.codes + n * x.dims.padded + begin;
    FormatSum sum(args.lengths.arith);
    for (int d = 0; d < dims; d += kTileDims) {
      const uint4 words = *reinterpret_cast<const uint4*>(w.codes + w.code_offset(m, begin + d));
      const auto* codes = reinterpret_cast<const uint8_t*>(&words);
#pragma unroll
      for (int k = 0; k < kTileDims; ++k) {
        if (d + k < dims) sum.Add(a[d + k], codes[k]);
      }
    }
    y = y + sum.Value(x.scales[c * x.tokens + n], w.scales[c * w.rows_padded + m]);
  }
  Store(args, slot, w.rows, m, y);
}

// Computes one output feature of one output row per thread; a block has kThreads rows of w and one output row.
// kHardware: the product may have faults, adders made of gates or narrow registers. kStaged: counts are staged in
// shared memory.
template <typename Count, bool kHardware, bool kStaged>
__global__ void __launch_bounds__(kThreads)
    PlainProductKernel(const __grid_constant__ PlainProduct args, int64_t first_row) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto* stage = reinterpret_cast<Count*>(memory);  // counts [kStageDims][levels]
  const int64_t slot = first_row + blockIdx.y;
  const int64_t n = slot / args.row_slots;
  const int64_t expert = args.experts == nullptr ? 0 : args.chosen[slot];
  const ScActivationView a = MatrixAt(args.a, blockIdx.z * args.batch.a_rows);
  const ScWeightView w =
      args.experts == nullptr ? MatrixAt(args.w, blockIdx.z * args.batch.w_rows) : args.experts[expert];
  const int64_t own = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const Operands operands{a.codes + n * a.dims.padded, w,
                          min(own, w.rows - 1),  // threads beyond the last row only help to stage
                          args.lengths.code == ScCode::kSignMagnitude};
  const int64_t m = operands.m;
  float y = 0.0f;
  for (int64_t c = 0; c < w.dims.chunks; ++c) {
    const uint8_t length = args.slots.slots == nullptr
                               ? uint8_t{0}
                               : args.slots.slots[n * args.slots.per_row + (args.slots.per_row > 1 ? c : 0)];
    const LengthTable table = args.lengths.tables == nullptr ? args.one : args.lengths.tables[length];
    if (CountsOf<Count>(table) == nullptr) continue;  // length 0: all threads of the block skip the chunk
    int32_t acc = 0;
    if constexpr (kHardware) {
      const ChunkSum sum = args.hardware.gates.steps != nullptr
                               ? SumGates(args, operands, c)
                               : SumCounts<Count, true, kStaged>(args, operands, table, c, stage);
      const uint64_t fault_row = args.site.FaultRowOf(n) + blockIdx.z * static_cast<uint64_t>(a.tokens);
      acc = Finish(args, operands, table, sum, fault_row, args.site.number + expert, c);
    } else {
      acc = static_cast<int32_t>(SumCounts<Count, false, kStaged>(args, operands, table, c, stage).acc);
    }
    const float scale_a = a.scales[c * a.tokens + n];
    const float scale_b = w.scales[c * w.rows_padded + m];
    if (args.lengths.code == ScCode::kAsymmetric) {
      y = UnipolarProduct(acc, table.gain, static_cast<int>(w.dims.dims), {scale_a, a.zeros[n], a.sums[n]},
                          {scale_b, w.zeros[m], w.sums[m]});
    } else {
      y = y + BipolarProduct(acc, table.gain, scale_a, scale_b);
    }
  }
  if (own < w.rows) Store(args, slot, w.rows, m, y);
}

template <typename Count>
auto KernelOf(bool has_hardware, bool is_staged) {
  if (has_hardware) return is_staged ? PlainProductKernel<Count, true, true> : PlainProductKernel<Count, true, false>;
  return is_staged ? PlainProductKernel<Count, false, true> : PlainProductKernel<Count, false, false>;
}

// Launches `kernel` for all output rows, kMaxGridRows at a time.
template <typename Kernel>
void LaunchRows(DeviceContext& ctx, const PlainProduct& args, Kernel kernel, size_t shared_bytes) {
  const int64_t total = args.a.tokens * args.row_slots;
  const auto blocks = static_cast<unsigned>((args.w.rows + kThreads - 1) / kThreads);
  for (int64_t first = 0; first < total; first += kMaxGridRows) {
    const auto rows = static_cast<unsigned>(std::min(total - first, kMaxGridRows));
    const dim3 grid(blocks, rows, static_cast<unsigned>(args.batch.count));
    kernel<<<grid, kThreads, shared_bytes, ctx.stream>>>(args, first);
    STOCH_CUDA_LAUNCH("PlainProductKernel");
  }
}

template <typename Count>
void Launch(DeviceContext& ctx, const PlainProduct& args) {
  // With staging, one row is 10 to 40 % faster, but 128 rows take twice as long (bench/log).
  constexpr int64_t kMostStagedRows = 32;
  const bool is_staged = args.a.tokens * args.row_slots <= kMostStagedRows;
  const size_t stage =
      static_cast<size_t>(kStageDims<Count>) * static_cast<size_t>(args.lengths.levels) * sizeof(Count);
  LaunchRows(ctx, args, KernelOf<Count>(args.hardware.finishes, is_staged), is_staged ? stage : 0);
}

// Applies the faults of stored codes in place, launched with one warp per row.
__global__ void __launch_bounds__(kThreads)
    ReadCodesKernel(const __grid_constant__ StoredCodes stored, const __grid_constant__ CodeFaults faults) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= stored.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint64_t site = faults.site.number + (faults.chosen == nullptr ? 0 : faults.chosen[row]);
  const uint64_t key = RandomBits(SiteKey(faults.seed, faults.kind, site), 0, faults.site.FaultRowOf(row));
  ScWeightView layout;
  layout.dims = stored.dims;
  int32_t sum = 0;
  for (int64_t i = lane; i < stored.dims.dims; i += kWarp) {
    const int64_t at = stored.dims.padded_index(i);
    uint8_t* code = stored.codes + (stored.is_weight ? layout.code_offset(row, at) : row * stored.dims.padded + at);
    int level = 0;
    *code = faults.words.ReadCode(*code, key, stored.channels == nullptr ? i : stored.channels[i], &level);
    sum += level;
  }
  if (stored.sums == nullptr) return;
  sum = static_cast<int32_t>(__reduce_add_sync(kAllLanes, static_cast<unsigned>(sum)));
  if (lane == 0) stored.sums[row] = sum;
}

}  // namespace

PlainProduct MakePlainProduct(DeviceContext& ctx, const ScOperator& op) {
  PlainProduct product;
  product.lengths.code = op.code;
  product.lengths.levels = op.levels;
  product.lengths.q_max = op.q_max;
  product.lengths.wide = !op.wide_counts.empty();
  product.lengths.arith = op.config.arith;
  product.one = MakeLengthTable(ctx.tables, op);
  return product;
}

void LaunchPlainProduct(DeviceContext& ctx, const PlainProduct& product) {
  if (IsNumberFormat(product.lengths.arith)) return LaunchRows(ctx, product, FormatProductKernel, 0);
  if (product.lengths.wide) return Launch<int32_t>(ctx, product);
  Launch<int16_t>(ctx, product);
}

const uint64_t* UploadFaultRows(DeviceContext& ctx, Scratch& scratch, std::span<const uint64_t> fault_rows) {
  if (fault_rows.empty()) return nullptr;
  ctx.RequireEager();  // a graph would be replayed for passes with other rows
  auto* const rows = scratch.Take<uint64_t>(static_cast<int64_t>(fault_rows.size()));
  // The source is pageable memory, so the copy has read it when the call returns.
  STOCH_CUDA(cudaMemcpyAsync(rows, fault_rows.data(), fault_rows.size_bytes(), cudaMemcpyHostToDevice, ctx.stream));
  return rows;
}

void LaunchReadCodes(DeviceContext& ctx, const StoredCodes& stored, const CodeFaults& faults) {
  if (!faults.words.any() || stored.rows == 0) return;
  const auto blocks = static_cast<unsigned>((stored.rows + kWarps - 1) / kWarps);
  ReadCodesKernel<<<blocks, kThreads, 0, ctx.stream>>>(stored, faults);
  STOCH_CUDA_LAUNCH("ReadCodesKernel");
}

}  // namespace stoch::cuda
