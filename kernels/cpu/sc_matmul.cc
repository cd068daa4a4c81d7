// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sc_matmul.h"

#include <atomic>

#include "kernels/base/matrix_batch.h"
#include "kernels/call_check.h"
#include "kernels/cpu/linear_weight.h"
#include "kernels/cpu/sc_product.h"

namespace stoch::cpu {
namespace {

struct Operand : MatrixBatch {
  using MatrixBatch::MatrixBatch;

  // Row `row` of all batches' rows.
  const float* Read(int64_t row, float* scratch) const {
    const float* begin = data + Offset(row, 0);
    if (col_step == 1) return begin;
    for (int64_t i = 0; i < cols; ++i) scratch[i] = begin[i * col_step];
    return scratch;
  }
};

}  // namespace

void ScMatmul(Context& context, const TensorView& a, const TensorView& b, const ScOperator& op, const TensorView& out) {
  CheckScMatmul(a, b, op, out);
  if (a.numel() == 0 || b.numel() == 0) {
    const MatrixBatch zero(out);
    for (int64_t row = 0; row < zero.batch * zero.rows; ++row) {
      for (int64_t m = 0; m < zero.cols; ++m) zero.data[zero.Offset(row, m)] = 0.0f;
    }
    return;
  }
  const Operand left(a);
  const Operand right(b);
  const MatrixBatch result(out);
  const ScLookupPtr lookup = context.lookups.Get(op);
  const auto report = [&] { context.finite.Report(a.device, {-1, "sc_matmul"}, "an operand"); };

  const int64_t rows = left.batch * left.rows;
  const ScChunks chunks(op, left.cols);
  const auto read_a = [&](int64_t row, float* scratch) { return left.Read(row, scratch); };
  const ScQuantizer quantizer(context.pool, context.simd, op, chunks,
                              ScopesOf(op, ScOperand::kA, left.batch, left.rows), rows, read_a);
  context.rows.Resize(*lookup, chunks, rows, chunks.size);
  // A product outside of a model: row i of layer 0's q_proj.
  const ScHardwarePtr hardware = MakeScHardware(op, chunks.size);
  const ScHardwareUse use{hardware.get(), {}};
  const auto read_codes = [&](FaultKind kind, const ScWordFaults& faults, int64_t row, uint8_t* codes, int32_t* sum) {
    const uint64_t key = FaultKey(hardware->seed(), kind, use.site, static_cast<uint64_t>(row));
    ReadCodes(op, faults, key, {}, 0, codes, left.cols, sum);
  };
  std::atomic<bool> finite{true};
  context.pool.ParallelFor(rows, [&](int64_t i, int) {
    std::vector<float> scratch(static_cast<size_t>(left.cols));
    const ScQuantizer::Row row = context.rows.row(i);
    if (!quantizer.Quantize(i, left.Read(i, scratch.data()), row)) finite.store(false);
    if (hardware != nullptr && hardware->a.any()) {
      read_codes(FaultKind::kActivation, hardware->a, i, row.codes, row.sum);
    }
    context.rows.Derive(*lookup, i);
  });
  if (!finite.load()) report();

  // Each batch of b is packed by itself, under scales that may span batches (per_tensor).
  const ScScopes scopes = ScopesOf(op, ScOperand::kB, right.batch, right.rows);
  const auto read_b = [&](int64_t row, float* scratch) { return right.Read(row, scratch); };
  const ScQuantizer quantizer_b(context.pool, context.simd, op, chunks, scopes, right.batch * right.rows, read_b);
  CodeFilter weight_faults;
  if (hardware != nullptr && hardware->b.any()) {
    weight_faults = [&](int64_t row, uint8_t* codes, int32_t* sum) {
      read_codes(FaultKind::kWeight, hardware->b, row, codes, sum);
    };
  }
  for (int64_t batch = 0; batch < left.batch; ++batch) {
    ScBlocks blocks;
    const int64_t first_row = batch * right.rows;
    if (PackBlocks(context.pool, op, quantizer_b, first_row, right.rows, read_b, &blocks, weight_faults) >= 0) report();
    // ScProduct counts rows of `out` as it counts rows of a.
    float* row_zero = result.data + batch * result.batch_step - batch * left.rows * result.row_step;
    ScTarget target{&blocks, row_zero, result.row_step, result.col_step, false};
    if (hardware != nullptr && !HasPlainSums(op.config)) target.use = &use;
    ScProduct(context.pool, context.simd, lookup, context.rows, batch * left.rows, left.rows, {&target, 1});
  }
}

}  // namespace stoch::cpu
