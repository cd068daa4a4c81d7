#include "kernels/cuda/sc/linear.h"

#include <algorithm>

#include "kernels/cuda/sc/batch/quantize.h"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/cuda/sc/table/table.h"
#include "kernels/cuda/sc/tensor_core/batch_wgmma.h"
#include "kernels/cuda/sc/tensor_core/prefill.h"

namespace stoch::cuda {
namespace {

// From here on one look-up for all rows beats one for each, the larger table to build included.
constexpr int64_t kFirstBatchFewRows = 2;
constexpr int64_t kFirstBatchTableRows = 5;

// Every row of f(x) is its own scope.
bool RowScopes(const ScOperator& op) {
  return op.config.granularity == ScGranularity::kPerRow && op.config.group_a == 1;
}

}  // namespace

int64_t ScLinearScratchBytes(const DeviceContext& ctx, const ScOperator& op, int64_t rows, int64_t cols,
                             int64_t max_tokens) {
  constexpr int64_t kFloat = sizeof(float);
  constexpr int64_t kPadding = 16 * static_cast<int64_t>(Workspace::kAlignment);  // of what is taken one by one
  const ScDims dims = MakeScDims(cols, op.config.chunk_d);
  // Products or sums of chunks for few tokens; then the tiles of small batches, of 8 tokens or multiples of that, where
  // fewer tokens may take more than more do in other tiles; then prefill.
  int64_t most = 0;
  const auto see = [&](int64_t tokens, int64_t bytes) {
    most = std::max(most, QuantizeScratchBytes(op, tokens, cols) + bytes);
  };
  const int64_t few = std::min<int64_t>(max_tokens, kMaxDecodeTokens);
  see(few, few * dims.chunks * (rows + kRowPadding) * kFloat);
  for (const int64_t full : {8, 16}) {
    const int64_t tokens = std::min(full, max_tokens);
    see(tokens, ScBatchTableScratchBytes(dims, tokens, rows));
  }
  for (int64_t full = 8; full <= kMaxBatchWgmmaTokens; full += 8) {
    const int64_t tokens = std::min(full, max_tokens);
    if (ScBatchWgmmaSupports(ctx, op, tokens)) see(tokens, ScBatchWgmmaScratchBytes(ctx, op, dims, tokens, rows));
  }
  if (ScPrefillSupports(op)) see(max_tokens, ScPrefillScratchBytes(ctx, op, dims, max_tokens, rows));
  return most + kPadding;
}

void LaunchScLinear(DeviceContext& ctx, const ScOperator& op, const RowSource& source, int64_t rows, int64_t cols,
                    const FiniteReporter& reporter, const ScLinearTask* tasks, int count) {
  const ScTables& tables = ctx.tables.Get(op);
  const ScDims dims = MakeScDims(cols, op.config.chunk_d);
  const bool few = rows >= kFirstBatchFewRows && ScBatchFewSupports(ctx, op, tables, dims, rows);
  const bool table = !few && rows >= kFirstBatchTableRows && ScBatchTableSupports(ctx, op, tables, dims, rows);
  const bool wgmma = !few && !table && rows >= kFirstBatchTableRows && ScBatchWgmmaSupports(ctx, op, rows);
  const bool decode = !few && !table && !wgmma && ScDecodeSupports(op, tables, dims, rows);
  const bool by_chunk = rows <= kMaxBatchWgmmaTokens && BatchQuantizes(op, dims);
  Scratch scratch(ctx.workspace);
  ScActivationView a;
  a.rows = rows;
  const bool fused = few || table ? by_chunk : decode && rows == 1 && RowScopes(op);
  if (!fused) {
    a = by_chunk ? LaunchBatchQuantize(ctx, scratch, source, rows, cols, op, reporter)
                 : LaunchQuantize(ctx, scratch, source, rows, cols, op, reporter);
  }
  if (few) {
    for (int first = 0; first < count; first += kMaxBatchTasks) {
      LaunchScBatchFew(ctx, tables, a, source, reporter, tasks + first, std::min(kMaxBatchTasks, count - first));
    }
  } else if (table) {
    for (int first = 0; first < count; first += kMaxBatchTasks) {
      LaunchScBatchTable(ctx, tables, a, source, reporter, tasks + first, std::min(kMaxBatchTasks, count - first));
    }
  } else if (wgmma) {
    for (int first = 0; first < count; first += kMaxBatchTasks) {
      LaunchScBatchWgmma(ctx, tables, a, reporter, tasks + first, std::min(kMaxBatchTasks, count - first));
    }
  } else if (decode) {
    for (int first = 0; first < count; first += kMaxDecodeTasks) {
      LaunchScDecode(ctx, tables, a, source, reporter, tasks + first, std::min(kMaxDecodeTasks, count - first));
    }
  } else if (ScPrefillSupports(op)) {
    LaunchScPrefill(ctx, op, tables, a, tasks, count);
  } else {
    LaunchScGeneric(ctx, tables, a, tasks, count);
  }
}

}  // namespace stoch::cuda
