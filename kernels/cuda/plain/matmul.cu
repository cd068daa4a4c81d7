// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/call_check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/plain/matmul.h"
#include "kernels/cuda/plain/operands.h"
#include "kernels/cuda/plain/product.h"
#include "kernels/cuda/runtime/for_each.cuh"

namespace stoch::cuda {
namespace {

constexpr int64_t kMaxBatch = 65535;  // products of a launch

// Sets output element i to 0, for products without dimensions.
struct ZeroWriter {
  MatrixBatch out;

  __device__ void operator()(int64_t i) const { out.data[out.Offset(i / out.cols, i % out.cols)] = 0.0f; }
};

// Applies the faults of stored codes to batch `batch` of an operand, in place. A product outside of a model numbers its
// rows over all batches, and faults are drawn by these numbers.
void ReadFaulty(DeviceContext& ctx, const PlainOperand& from, int64_t batch, const ScWordFaultView& words,
                uint64_t seed, FaultKind kind) {
  StoredCodes stored;
  stored.codes = from.codes_of(batch);
  stored.dims = from.dims;
  stored.rows = from.rows;
  stored.is_weight = kind == FaultKind::kWeight;
  stored.sums = words.code == ScCode::kAsymmetric ? from.sums + batch * from.padded_rows : nullptr;
  CodeFaults faults;
  faults.words = words;
  faults.seed = seed;
  faults.kind = kind;
  faults.site.first_row = static_cast<uint64_t>(batch * from.rows);
  LaunchReadCodes(ctx, stored, faults);
}

}  // namespace

void LaunchScMatmul(DeviceContext& ctx, const TensorView& a, const TensorView& b, const ScOperator& op,
                    const TensorView& out) {
  CheckScMatmul(a, b, op, out);
  const MatrixBatch left(a);
  const MatrixBatch right(b);
  const MatrixBatch result(out);
  if (out.numel() == 0) return;
  if (left.cols == 0) return LaunchForEach(ctx, out.numel(), ZeroWriter{result});
  Scratch scratch(ctx.workspace);
  const SiteReporter reporter = ctx.Reporter({-1, "sc_matmul"});
  const PlainOperand qa = QuantizeOperand(ctx, scratch, left, op, OperandSide::kA, reporter);
  const PlainOperand qb = QuantizeOperand(ctx, scratch, right, op, OperandSide::kB, reporter);
  const HardwareTablesPtr hardware = MakeHardwareTables(ctx.device, op, qa.dims.chunk_d);
  PlainProduct product = MakePlainProduct(ctx, op);
  if (hardware != nullptr) product.hardware = hardware->view();
  const HardwareView& view = product.hardware;
  for (int64_t batch = 0; batch < left.batch; ++batch) {
    ReadFaulty(ctx, qa, batch, view.activation, view.seed, FaultKind::kActivation);
    ReadFaulty(ctx, qb, batch, view.weight, view.seed, FaultKind::kWeight);
  }
  for (int64_t first = 0; first < left.batch; first += kMaxBatch) {
    product.a = qa.activations(first);
    product.w = qb.weight(first);
    product.out = {result.data + first * result.batch_step, result.row_step, result.col_step, false};
    product.batch = {std::min(left.batch - first, kMaxBatch), qa.padded_rows, qb.padded_rows, result.batch_step};
    product.site.first_row = static_cast<uint64_t>(first * left.rows);
    LaunchPlainProduct(ctx, product);
  }
  // The kernels must end before `hardware` frees its tables.
  if (hardware != nullptr) STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
}

}  // namespace stoch::cuda
