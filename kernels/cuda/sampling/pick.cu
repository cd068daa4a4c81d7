// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sampling/query_launch.cuh"
#include "kernels/cuda/sampling/rank_cut.cuh"

namespace stoch::cuda {
namespace {

using namespace sampling;

// Copies the logits of this block's token ids to `adjusted`, with biases, penalties and mask applied. Entries of one
// list have distinct ids, so their order does not matter. Called by all threads of the block.
__device__ void Adjust(const LogitQueryView& queries, const PickRecord& pick, const RowScan& scan, float* adjusted) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto mine = [&](int32_t id) { return id >= scan.block_begin() && id < scan.block_end(); };
  for (int32_t id = scan.block_begin() + thread; id < scan.block_end(); id += kThreads) adjusted[id] = scan.logit(id);
  __syncthreads();
  for (int32_t i = thread; i < pick.num_biases; i += kThreads) {
    const PickEntry entry = queries.entries[pick.first_bias + i];
    if (mine(entry.id)) adjusted[entry.id] = adjusted[entry.id] + BitsToFloat(entry.value);
  }
  __syncthreads();
  for (int32_t i = thread; i < pick.num_counts; i += kThreads) {
    const PickEntry entry = queries.entries[pick.first_count + i];
    if (!mine(entry.id)) continue;
    adjusted[entry.id] = Penalize(adjusted[entry.id], static_cast<int32_t>(entry.value), pick.repeat_penalty,
                                  pick.presence_penalty, pick.frequency_penalty);
  }
  __syncthreads();
  if (pick.mask >= 0) {
    const int64_t words = TokenMaskWords(queries.vocab_size);
    const uint32_t* allowed = queries.masks + pick.mask * words;
    for (int32_t id = scan.block_begin() + thread; id < scan.block_end(); id += kThreads) {
      if (!IsAllowed(allowed, id)) adjusted[id] = DisallowedLogit();
    }
    __syncthreads();
  }
}

// Returns the token of a pick in every thread of the cluster; -1 if the logits are not all finite. Called by all
// threads of the cluster.
__device__ int32_t PickToken(const PickRecord& pick, RowScan& scan, CutShared& cut_shared, int32_t vocab_size) {
  uint64_t extremes[2] = {0, 0};  // [0]: rank of the highest-ranked token; [1]: complement of the lowest key
  scan.ForEach([&](int32_t id, float logit) {
    extremes[0] = max(extremes[0], RankKey(logit, id));
    extremes[1] = max(extremes[1], static_cast<uint64_t>(~OrderedKey(logit)));
  });
  scan.Max(extremes);
  const auto highest = static_cast<uint32_t>(extremes[0] >> 32);
  const uint32_t lowest = ~static_cast<uint32_t>(extremes[1]);
  // Keys of NaN lie outside the range of the keys of the infinities.
  const float infinity = BitsToFloat(0x7f800000u);
  if (highest >= OrderedKey(infinity) || lowest <= OrderedKey(-infinity)) return -1;
  if (pick.temperature == 0.0f) return RankId(extremes[0]);

  const float largest = KeyToFloat(highest);
  const float temperature = pick.temperature;
  const auto weight = [&](float logit) { return SampleWeight(logit, largest, temperature); };
  uint64_t cut = 0;
  if (pick.top_k > 0 && pick.top_k < vocab_size) {
    cut = CutRanking(scan, cut_shared, lowest, highest, static_cast<uint64_t>(pick.top_k), CountOne());
  }
  if (pick.top_p < 1.0) {
    uint64_t total[1] = {0};
    scan.ForEach([&](int32_t id, float logit) { total[0] += RankKey(logit, id) >= cut ? weight(logit) : 0; });
    scan.Sum(total);
    // e^-24 * 2^32 rounds to 0, so a logit more than 24 temperatures below the largest has weight 0.
    const uint32_t low =
        max(max(lowest, static_cast<uint32_t>(cut >> 32)), min(highest, OrderedKey(largest - 24.0f * temperature)));
    cut = CutRanking(scan, cut_shared, low, highest, TopPWeight(pick.top_p, total[0]), weight);
  }
  const auto left = [&](int32_t id, float logit) -> uint64_t {
    if (RankKey(logit, id) < cut) return 0;
    const uint64_t own = weight(logit);
    return own >= pick.min_weight ? own : 0;
  };
  return scan.Locate(left, [&](uint64_t total) { return DrawThreshold(pick.random, total); });
}

// Picks one token per cluster. Grid: blockIdx.x is a block of the cluster, blockIdx.y a pick from args.first on.
__global__ void __launch_bounds__(kThreads) PickTokensKernel(const QueryArgs args) {
  __shared__ ScanShared scan_shared;
  __shared__ CutShared cut_shared;
  WaitForPrevious();
  args.reporter.Begin();
  const int64_t query = args.first + blockIdx.y;
  const PickRecord pick = args.queries.picks[query];
  const int64_t row = pick.row - args.first_row;
  if (pick.row < 0 || row < 0 || row >= args.rows) return;
  Cluster::Sync();  // waits until all blocks of the cluster run, before one writes another's shared memory
  const float* logits = args.logits + row * args.stride;
  const int32_t vocab_size = args.queries.vocab_size;
  RowScan scan(logits, vocab_size, scan_shared);
  if (pick.num_biases > 0 || pick.num_counts > 0 || pick.mask >= 0) {
    float* adjusted = args.queries.adjusted + query * vocab_size;
    Adjust(args.queries, pick, scan, adjusted);
    scan.SetRow(adjusted);
  }
  const int32_t id = PickToken(pick, scan, cut_shared, vocab_size);
  if (Cluster::Rank() == 0 && threadIdx.x == 0) {
    args.queries.picked[query] = id;
    args.queries.picked_host[query] = id;
  }
  Cluster::Sync();  // no block exits while another one may still write its shared memory
}

}  // namespace

void LaunchPickTokens(DeviceContext& ctx, const LogitRows& logits, const CudaLogitQueries& queries,
                      const QueryRange& range) {
  LaunchQueries(ctx, "pick_tokens", PickTokensKernel, logits, queries, range);
}

}  // namespace stoch::cuda
