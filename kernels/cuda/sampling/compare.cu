// SPDX-License-Identifier: Apache-2.0
// Compares rows of logits with base rows: one cluster of blocks per pair of rows.
#include <algorithm>

#include "kernels/call_check.h"
#include "kernels/cuda/runtime/cluster_launch.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/ops.h"
#include "kernels/cuda/sampling/lane_sum.cuh"
#include "kernels/cuda/sampling/row_scan.cuh"
#include "kernels/math/divergence.h"

namespace stoch::cuda {
namespace {

using namespace sampling;

struct CompareArgs {
  const float* logits = nullptr;
  const float* base = nullptr;
  int64_t stride = 0;  // floats between rows of logits; base_stride: between rows of base
  int64_t base_stride = 0;
  const int32_t* targets = nullptr;
  LogitComparison* out = nullptr;
  int32_t vocab_size = 0;
  SiteReporter reporter;
};

// Writes one LogitComparison per row. Grid: blockIdx.x is a block of the cluster, blockIdx.y a row of logits and of
// base.
__global__ void __launch_bounds__(kThreads) CompareLogitsKernel(const CompareArgs args) {
  __shared__ ScanShared scan_shared;
  __shared__ LaneSumShared<float> exp_shared;
  __shared__ LaneSumShared<double> term_shared;
  WaitForPrevious();
  args.reporter.Begin();
  Cluster::Sync();  // waits until all blocks of the cluster run, before one writes another's shared memory
  const int64_t row = blockIdx.y;
  const float* logits = args.logits + row * args.stride;
  const float* base = args.base + row * args.base_stride;
  const int32_t vocab_size = args.vocab_size;
  RowScan scan(base, vocab_size, scan_shared);
  // [0] and [1] are of base, [2] and [3] of logits: the rank of the highest-ranked token, 1 if a logit is not finite.
  uint64_t seen[4] = {0, 0, 0, 0};
  scan.ForEach([&](int32_t id, float logit) {
    seen[0] = max(seen[0], RankKey(logit, id));
    seen[1] |= IsFinite(logit) ? 0 : 1;
  });
  scan.SetRow(logits);
  scan.ForEach([&](int32_t id, float logit) {
    seen[2] = max(seen[2], RankKey(logit, id));
    seen[3] |= IsFinite(logit) ? 0 : 1;
  });
  scan.Max(seen);
  const double nan = BitsToDouble(kComparisonNan);
  LogitComparison result{nan, nan, nan, seen[3] != 0 ? -1 : RankId(seen[2]), seen[1] != 0 ? -1 : RankId(seen[0])};
  if (result.top >= 0 && result.base_top >= 0) {  // equal in all threads of the cluster
    const auto sum_of = [&](const float* of, float largest) {
      const float sum = LaneSum(vocab_size, exp_shared, [&](int32_t id) { return Exp(of[id] - largest); });
      Cluster::Sync();  // the next sum overwrites shared memory that this sum was read from
      return LogSum{static_cast<double>(largest), Log(static_cast<double>(sum))};
    };
    const LogSum base_sum = sum_of(base, RankLogit(seen[0]));
    const LogSum own = sum_of(logits, RankLogit(seen[2]));
    result.kld = LaneSum(vocab_size, term_shared, [&](int32_t id) {
      return DivergenceTerm(base_sum.LogProb(base[id]), own.LogProb(logits[id]));
    });
    const int32_t target = args.targets[row];
    if (target >= 0 && target < vocab_size) {
      result.logprob = own.LogProb(logits[target]);
      result.base_logprob = base_sum.LogProb(base[target]);
    }
  }
  if (Cluster::Rank() == 0 && threadIdx.x == 0) args.out[row] = result;
  Cluster::Sync();  // no block exits while another one may still write its shared memory
}

}  // namespace

void LaunchCompareLogits(DeviceContext& ctx, const CompareLogitsCall& call) {
  CheckCompareLogits(call);
  constexpr int64_t kRowsAtOnce = 32768;  // rows per launch; gridDim.y is limited to 65535
  const int blocks = ctx.traits.has_clusters ? kBlocks : 1;
  const int64_t rows = call.logits.dim(0);
  CompareArgs args;
  args.stride = call.logits.step(0);
  args.base_stride = call.base.step(0);
  args.vocab_size = static_cast<int32_t>(call.logits.dim(1));
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    args.logits = call.logits.ptr<const float>() + first * args.stride;
    args.base = call.base.ptr<const float>() + first * args.base_stride;
    args.targets = call.targets.ptr<const int32_t>() + first;
    args.out = call.out.ptr<LogitComparison>() + first;
    args.reporter = ctx.Reporter(call.site);
    const auto count = static_cast<unsigned>(std::min(kRowsAtOnce, rows - first));
    LaunchClusters(ctx, CompareLogitsKernel, dim3(static_cast<unsigned>(blocks), count), kThreads, 0, args);
  }
}

}  // namespace stoch::cuda
