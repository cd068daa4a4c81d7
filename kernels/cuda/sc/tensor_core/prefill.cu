#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/sc/tensor_core/prefill.h"
#include "kernels/cuda/sc/tensor_core/prefill_kernels.h"

namespace stoch::cuda {

bool ScPrefillSupports(const ScOperator& op) {
  return op.code == ScCode::kSignMagnitude && op.has_streams && op.config.stoc_len <= 256;
}

int64_t ScPrefillScratchBytes(const DeviceContext& ctx, const ScOperator& op, const ScDims& dims, int64_t tokens,
                              int64_t rows) {
  const ScStreams streams = MakeScStreams(dims, tokens, kPrefillTokens, op.config.stoc_len);
  // PrefillSchedule::rest: fewer than there are clusters of two multiprocessors, and the tiles of the last tokens.
  const int64_t supers = (rows + kSuperRows - 1) / kSuperRows;
  const int64_t rest = std::min(supers * streams.token_tiles, ctx.sm_count / 2 + supers);
  return streams.bytes() + (streams.scale_count() + rest * (kSuperRows * kPrefillTokens + kPrefillFlags)) *
                               static_cast<int64_t>(sizeof(float));
}

void LaunchScPrefill(DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScActivationView& a,
                     const ScLinearTask* tasks, int count, const ScPrefillOptions& options) {
  STOCH_CHECK(ScPrefillSupports(op) && count >= 1 && a.rows >= 1);
  const bool wgmma = options.path == ScPrefillPath::kAuto ? ctx.compute_capability == 90 && PrefillWgmmaBuilt()
                                                          : options.path == ScPrefillPath::kWgmma;
  Scratch scratch(ctx.workspace);
  PrefillArgs args;
  args.streams = MakeScStreams(a.dims, a.rows, kPrefillTokens, tables.stoc_len);
  args.streams.data = scratch.Take<uint8_t>(args.streams.bytes());
  args.streams.scales = scratch.Take<float>(args.streams.scale_count());
  args.gain = tables.gain;
  if (!tables.direct_ranks) args.ranks = tables.ranks;
  args.masks = tables.masks;
  args.levels = tables.levels;

  for (int first = 0; first < count; first += kMaxPrefillTasks) {
    args.task_count = std::min(count - first, kMaxPrefillTasks);
    int supers = 0;
    for (int i = 0; i < args.task_count; ++i) {
      const ScLinearTask& task = tasks[first + i];
      args.tasks[i] = {task.weight.codes,
                       task.weight.scales,
                       task.out.data,
                       task.out.stride,
                       static_cast<int>(task.weight.rows),
                       static_cast<int>(task.weight.rows_padded),
                       supers,
                       task.out.add};
      supers += static_cast<int>((task.weight.rows + kSuperRows - 1) / kSuperRows);
    }
    Scratch pieces(ctx.workspace);
    int flags = 0;
    if (wgmma) {
      int clusters = static_cast<int>(MaxPrefillClusters(args));
      STOCH_CHECK(clusters >= 1);
      if (options.clusters > 0) clusters = std::min(clusters, options.clusters);
      args.schedule = MakePrefillSchedule(clusters, supers, args.streams.tokens, args.streams.chunks);
      flags = args.schedule.rest() * kPrefillFlags;
      args.partial = pieces.Take<float>(static_cast<int64_t>(args.schedule.rest()) * kSuperRows * kPrefillTokens);
      args.flags = pieces.Take<int>(flags);
    }
    if (first == 0) {
      LaunchExpandStreams(ctx, tables, a, args.streams, args.flags, flags);
    } else if (flags > 0) {
      STOCH_CUDA(cudaMemsetAsync(args.flags, 0, static_cast<size_t>(flags) * sizeof(int), ctx.stream));
    }
    if (wgmma) {
      LaunchPrefillWgmma(ctx.stream, args);
    } else {
      LaunchPrefillMma(ctx.stream, args);
    }
  }
}

}  // namespace stoch::cuda
