// SPDX-License-Identifier: Apache-2.0
// Any operator, a length for every (row, chunk): one product at a time from the table of its length.
//
// A block takes one row of activations and kThreads rows of weights, a thread each. The count rows of the activation's
// codes pass through shared memory, as in matmul.cu, so that a table of megabytes is read once for all of them.
#include <algorithm>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/mixed/product.h"
#include "kernels/math/quantize.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Count>
constexpr int kStageDims = 128 / static_cast<int>(sizeof(Count));  // 32 KB of 256 levels

struct ProductArgs {
  LengthView view;
  ScActivationView a;
  ScWeightView w;
  RowSlots slots;
  LinearOutput out;
  const float* addend = nullptr;
  int64_t first_row = 0;  // of the rows of a that this launch takes
};

template <typename Count>
__device__ const Count* CountsOf(const LengthTable& table) {
  if constexpr (sizeof(Count) == sizeof(int16_t)) return table.counts16;
  return reinterpret_cast<const Count*>(table.counts32);
}

// The sum of one chunk. All threads of the block call it.
template <typename Count>
__device__ int32_t ChunkSum(const ProductArgs& args, const LengthTable& table, int64_t n, int64_t m, int64_t c,
                            Count* stage) {
  const Count* counts = CountsOf<Count>(table);
  const bool sign_magnitude = args.view.code == ScCode::kSignMagnitude;
  const int level_mask = sign_magnitude ? 0x7f : 0xff;
  const int sign_mask = sign_magnitude ? 0x80 : 0;
  const int levels = args.view.levels;
  const int64_t begin = c * args.w.dims.chunk_stride;
  const int64_t dims = args.w.dims.chunk_dims(c);
  const uint8_t* a = args.a.codes + n * args.a.dims.padded + begin;
  int32_t acc = 0;
  for (int64_t first = 0; first < dims; first += kStageDims<Count>) {
    const int some = static_cast<int>(min(static_cast<int64_t>(kStageDims<Count>), dims - first));
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < some * levels; i += kThreads) {
      const int j = i / levels;
      const int64_t mask = (first + j) & table.mask_bits;
      const int level = a[first + j] & level_mask;
      stage[i] = counts[(mask * levels + level) * levels + i % levels];
    }
    __syncthreads();
    for (int j = 0; j < some; j += kTileDims) {
      const uint4 words = *reinterpret_cast<const uint4*>(args.w.codes + args.w.code_offset(m, begin + first + j));
      const auto* codes = reinterpret_cast<const uint8_t*>(&words);
#pragma unroll
      for (int k = 0; k < kTileDims; ++k) {
        if (j + k >= some) break;
        const int code = codes[k];
        const auto entry = static_cast<int32_t>(stage[(j + k) * levels + (code & level_mask)]);
        acc += ((code ^ a[first + j + k]) & sign_mask) != 0 ? -entry : entry;
      }
    }
  }
  return acc;
}

template <typename Count>
__global__ void __launch_bounds__(kThreads) MixedProductKernel(const ProductArgs args) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto* stage = reinterpret_cast<Count*>(memory);  // [kStageDims][levels]
  const int64_t n = args.first_row + blockIdx.y;
  const int64_t own = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t m = min(own, args.w.rows - 1);  // threads beyond the last row take part in staging
  float y = 0.0f;
  for (int64_t c = 0; c < args.w.dims.chunks; ++c) {
    const uint8_t slot = args.slots.slots == nullptr
                             ? uint8_t{0}
                             : args.slots.slots[n * args.slots.per_row + (args.slots.per_row > 1 ? c : 0)];
    const LengthTable table = args.view.tables[slot];
    if (CountsOf<Count>(table) == nullptr) continue;  // pruned, for the whole block
    const int32_t acc = ChunkSum<Count>(args, table, n, m, c, stage);
    const float scale_a = args.a.scales[c * args.a.tokens + n];
    const float scale_b = args.w.scales[c * args.w.rows_padded + m];
    if (args.view.code == ScCode::kAsymmetric) {
      y = UnipolarProduct(acc, table.gain, static_cast<int>(args.w.dims.dims),
                          {scale_a, args.a.zeros[n], args.a.sums[n]}, {scale_b, args.w.zeros[m], args.w.sums[m]});
    } else {
      y = y + BipolarProduct(acc, table.gain, scale_a, scale_b);
    }
  }
  if (own >= args.w.rows) return;
  if (args.addend != nullptr) y = y + args.addend[n * args.w.rows + m];
  float* out = args.out.data + n * args.out.stride + m;
  *out = args.out.add ? *out + y : y;
}

template <typename Count>
void Launch(DeviceContext& ctx, ProductArgs args) {
  constexpr int64_t kMaxGridRows = 65535;
  const size_t shared = static_cast<size_t>(kStageDims<Count>) * static_cast<size_t>(args.view.levels) * sizeof(Count);
  const auto blocks = static_cast<unsigned>((args.w.rows + kThreads - 1) / kThreads);
  for (args.first_row = 0; args.first_row < args.a.tokens; args.first_row += kMaxGridRows) {
    const auto rows = static_cast<unsigned>(std::min(args.a.tokens - args.first_row, kMaxGridRows));
    MixedProductKernel<Count><<<dim3(blocks, rows), kThreads, shared, ctx.stream>>>(args);
    STOCH_CUDA_LAUNCH("MixedProductKernel");
  }
}

}  // namespace

void LaunchMixedProduct(DeviceContext& ctx, const ScActivationView& a, const MixedPart& part, const RowSlots& slots,
                        const LinearOutput& out, const float* addend) {
  ProductArgs args;
  args.view = part.lengths->view();
  args.a = a;
  args.w = part.view;
  args.slots = slots;
  args.out = out;
  args.addend = addend;
  if (args.view.wide) return Launch<int32_t>(ctx, args);
  Launch<int16_t>(ctx, args);
}

}  // namespace stoch::cuda
