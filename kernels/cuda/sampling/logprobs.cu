// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sampling/lane_sum.cuh"
#include "kernels/cuda/sampling/query_launch.cuh"
#include "kernels/cuda/sampling/rank_cut.cuh"

namespace stoch::cuda {
namespace {

using namespace sampling;

struct TopShared {
  uint64_t ranks[kMaxTopLogProbs];
  int32_t count;
};

// Finds the `top` highest-ranked tokens of a row: the cluster's first block gets their ranks (RankKey) in shared.ranks,
// in order. first: the highest rank; lowest: the lowest key. Called by all threads of the cluster.
__device__ void FindTop(RowScan& scan, TopShared& shared, CutShared& cut_shared, uint64_t first, uint32_t lowest,
                        int32_t top, int32_t vocab_size) {
  if (top == 1) {
    if (threadIdx.x == 0) shared.ranks[0] = first;
    __syncthreads();
    return;
  }
  uint64_t cut = 0;
  if (top < vocab_size) {
    cut = CutRanking(scan, cut_shared, lowest, static_cast<uint32_t>(first >> 32), static_cast<uint64_t>(top),
                     CountOne());
  }
  if (threadIdx.x == 0) shared.count = 0;
  Cluster::Sync();
  TopShared* found = Cluster::At(&shared, 0);
  scan.ForEach([&](int32_t id, float logit) {
    const uint64_t rank = RankKey(logit, id);
    if (rank >= cut) found->ranks[atomicAdd(&found->count, 1)] = rank;
  });
  Cluster::Sync();
  const int thread = static_cast<int>(threadIdx.x);
  const uint64_t own = thread < top ? shared.ranks[thread] : 0;
  int before = 0;
  for (int i = 0; i < top; ++i) before += shared.ranks[i] > own ? 1 : 0;
  __syncthreads();
  if (Cluster::Rank() == 0 && thread < top) shared.ranks[before] = own;
  __syncthreads();
}

// Answers one LogProbQuery per cluster. Grid: blockIdx.x is a block of the cluster, blockIdx.y a query from args.first
// on.
__global__ void __launch_bounds__(kThreads) LogProbsKernel(const QueryArgs args) {
  __shared__ ScanShared scan_shared;
  __shared__ CutShared cut_shared;
  __shared__ LaneSumShared<float> sum_shared;
  __shared__ TopShared top_shared;
  WaitForPrevious();
  args.reporter.Begin();
  const int64_t index = args.first + blockIdx.y;
  const LogProbQuery query = args.queries.logprobs[index];
  const int64_t row = query.row - args.first_row;
  if (query.row < 0 || row < 0 || row >= args.rows) return;
  Cluster::Sync();  // waits until all blocks of the cluster run, before one writes another's shared memory
  const float* logits = args.logits + row * args.stride;
  const int32_t vocab_size = args.queries.vocab_size;
  RowScan scan(logits, vocab_size, scan_shared);
  uint64_t extremes[2] = {0, 0};  // [0]: rank of the highest-ranked token; [1]: complement of the lowest key
  scan.ForEach([&](int32_t id, float logit) {
    extremes[0] = max(extremes[0], RankKey(logit, id));
    extremes[1] = max(extremes[1], static_cast<uint64_t>(~OrderedKey(logit)));
  });
  scan.Max(extremes);
  const float largest = RankLogit(extremes[0]);
  const float sum = LaneSum(vocab_size, sum_shared, [&](int32_t id) { return Exp(logits[id] - largest); });
  const double log_sum = Log(static_cast<double>(sum));
  const auto logprob = [&](float logit) {
    return (static_cast<double>(logit) - static_cast<double>(largest)) - log_sum;
  };
  const int32_t top = min(query.top, vocab_size);
  if (top > 0) {
    FindTop(scan, top_shared, cut_shared, extremes[0], ~static_cast<uint32_t>(extremes[1]), top, vocab_size);
  }
  if (Cluster::Rank() == 0) {
    LogProbAnswer& answer = args.queries.answers[index];
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < top) {
      answer.top_ids[thread] = RankId(top_shared.ranks[thread]);
      answer.top_logprobs[thread] = logprob(RankLogit(top_shared.ranks[thread]));
    }
    if (thread == 0) {
      const int32_t id = query.id >= 0 ? query.id : args.queries.picked[query.pick];
      answer.id = id;
      answer.logprob = id >= 0 ? logprob(logits[id]) : 0;
      answer.top = top;
    }
  }
  Cluster::Sync();  // no block exits while another one may still write its shared memory
}

}  // namespace

void LaunchLogProbs(DeviceContext& ctx, const LogitRows& logits, const CudaLogitQueries& queries,
                    const QueryRange& range) {
  LaunchQueries(ctx, "logprobs", LogProbsKernel, logits, queries, range);
}

}  // namespace stoch::cuda
