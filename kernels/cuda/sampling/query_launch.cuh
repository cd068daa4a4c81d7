// SPDX-License-Identifier: Apache-2.0
// Launching the kernels that answer queries about logits: one cluster of blocks per query.
#pragma once

#include <algorithm>
#include <string_view>

#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/sampling/logit_queries.h"
#include "kernels/cuda/sampling/row_scan.cuh"

namespace stoch::cuda::sampling {

// Arguments of the kernels PickTokensKernel and LogProbsKernel.
struct QueryArgs {
  LogitQueryView queries;
  const float* logits = nullptr;
  int64_t stride = 0;
  int64_t first_row = 0;  // query rows are numbered from 0; logits has rows [first_row, first_row + rows)
  int64_t rows = 0;
  int64_t first = 0;  // query that blocks with blockIdx.y = 0 answer
  SiteReporter reporter;
};

// Launches `kernel` for the queries of `range`: blockIdx.y is a query from args.first on, blockIdx.x a block of its
// cluster. name: the op in error messages.
inline void LaunchQueries(DeviceContext& ctx, std::string_view name, void (*kernel)(QueryArgs), const LogitRows& logits,
                          const CudaLogitQueries& queries, const QueryRange& range) {
  constexpr int64_t kQueriesAtOnce = 32768;  // queries per launch; gridDim.y is limited to 65535
  const int blocks = ctx.traits.has_clusters ? kBlocks : 1;
  for (int64_t done = 0; done < range.count; done += kQueriesAtOnce) {
    const auto count = static_cast<unsigned>(std::min(kQueriesAtOnce, range.count - done));
    LaunchClusters(ctx, kernel, dim3(static_cast<unsigned>(blocks), count), kThreads, 0,
                   QueryArgs{queries.view(), logits.view.ptr<const float>(), logits.view.step(0), logits.first_row,
                             logits.view.dim(0), range.first + done, ctx.Reporter({-1, name})});
  }
}

}  // namespace stoch::cuda::sampling
