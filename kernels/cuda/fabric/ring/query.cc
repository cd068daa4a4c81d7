// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/ring/query.h"

#include <algorithm>
#include <deque>

#include "kernels/cuda/attention/dealt.h"
#include "kernels/cuda/attention/shape.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/plan/attention/ring.h"

namespace stoch::cuda {
namespace {

// Consecutive rows of a pass whose queries go to the keys together, on all devices.
class QueryRows {
 public:
  // scores: [rank] scratch for scores, [count][num_heads][stride] floats each. The rows are [first, first + count) of
  // the pass.
  QueryRows(const std::vector<RingPart>& parts, QueryExchange& exchange, const std::vector<float*>& scores,
            int64_t first, int64_t count, int64_t stride);
  // Runs all steps. with_keys: the keys and values of the whole pass are appended to the caches first, which requires
  // that these are all rows of the pass.
  void Run(bool with_keys, RingProbe* probe);

 private:
  const RingPart& part(int rank) const { return parts_[static_cast<size_t>(rank)]; }
  DealtAttention& args(int rank) { return args_[static_cast<size_t>(rank)]; }
  const ShareLayout& layout(int rank) const { return layouts_[static_cast<size_t>(rank)]; }
  int ranks() const { return static_cast<int>(parts_.size()); }
  DealtAttention ArgsOf(int rank) const;
  uint8_t* AreaOf(int rank) const;
  // Returns bytes [begin, end) of a rank's share (QueryShare), which the exchange then shows to the other ranks.
  SharedBytes Shared(int rank, int64_t begin, int64_t end) const;
  SharedBytes Append(int rank, bool with_keys);

  const std::vector<RingPart>& parts_;
  QueryExchange& exchange_;
  const std::vector<float*>& scores_;
  int64_t first_;
  int64_t count_;
  int64_t stride_;
  // Which of rows [first_, first_ + count_) each rank owns: own_rows_ [rank] is their number, first_own_ [rank] the index
  // of the first of them among all rows of the pass that the rank owns.
  std::vector<int32_t> first_own_, own_rows_;
  std::vector<ShareLayout> layouts_;
  std::vector<DealtAttention> args_;
};

QueryRows::QueryRows(const std::vector<RingPart>& parts, QueryExchange& exchange, const std::vector<float*>& scores,
                     int64_t first, int64_t count, int64_t stride)
    : parts_(parts), exchange_(exchange), scores_(scores), first_(first), count_(count), stride_(stride) {
  const PassLayout& pass = part(0).pass->layout();
  for (int rank = 0; rank < ranks(); ++rank) {
    const Stripe& stripe = part(rank).stripe;
    int64_t before = 0;
    int64_t until = 0;
    for (const PassLayout::Sequence& sequence : pass.sequences) {
      const auto rows_below = [&](int64_t row) {
        const int64_t rows = std::clamp<int64_t>(row - sequence.first_row, 0, sequence.num_rows);
        return stripe.Below(sequence.start_position + rows) - stripe.Below(sequence.start_position);
      };
      before += rows_below(first);
      until += rows_below(first + count);
    }
    first_own_.push_back(static_cast<int32_t>(before));
    own_rows_.push_back(static_cast<int32_t>(until - before));
    layouts_.emplace_back(part(rank).cache->spec(), part(rank).call->num_heads, count, until - before);
  }
}

uint8_t* QueryRows::AreaOf(int rank) const { return part(rank).places().area(part(rank).scratch, exchange_.area()); }

SharedBytes QueryRows::Shared(int rank, int64_t begin, int64_t end) const {
  return {AreaOf(rank) + begin, begin, end - begin};
}

DealtAttention QueryRows::ArgsOf(int rank) const {
  const RingPart& own = part(rank);
  const KvCacheSpec& spec = own.cache->spec();
  const int layer = own.call->cache_layer;
  DeviceContext& ctx = *own.ctx;
  DealtAttention args;
  args.attention = own.args;
  args.attention.pass = own.pass->view();
  args.plan =
      PlanDealt(ctx.traits, ShapeOf(*own.cache, layer, own.call->num_heads, spec.num_kv_heads), count_, stride_);
  args.qk = ctx.tables.Get(own.cache->qk(layer));
  args.av = ctx.tables.Get(own.cache->av(layer));
  const RingPlaces places = own.places();
  args.scores = scores_[static_cast<size_t>(rank)];
  args.stride = stride_;
  args.rows = static_cast<int32_t>(count_);
  args.pairs = MakeDilatedPairs(own.call->dilated, own.call->first_head);
  DealtRowsView& dealt = args.dealt;
  dealt.stripe = StripeView(own.stripe);
  dealt.stripes = ranks();
  dealt.index = rank;
  dealt.page_shift = args.attention.kv.page_shift - dealt.stripe.count_shift;
  dealt.queries = places.queries(own.scratch) + first_;
  for (int other = 0; other < ranks(); ++other) {
    const auto i = static_cast<size_t>(other);
    dealt.first_own[i] = first_own_[i];
    uint8_t* const area = AreaOf(other);
    dealt.shares[i] = ShareAt(layout(other), other == rank ? area : exchange_.ReadPlace(other, area));
  }
  return args;
}

SharedBytes QueryRows::Append(int rank, bool with_keys) {
  const RingPart& own = part(rank);
  DeviceContext& ctx = *own.ctx;
  const ShareLayout& share = layout(rank);
  STOCH_CUDA(cudaMemsetAsync(AreaOf(rank), 0, static_cast<size_t>(share.cleared_end), ctx.stream));
  const int32_t rows = own_rows_[static_cast<size_t>(rank)];
  if (rows == 0) return {};
  const int32_t first = first_own_[static_cast<size_t>(rank)];
  AttentionArgs queries = own.args;
  queries.pass.positions += first;
  queries.pass.row_sequence += first;
  queries.q += first * queries.q_stride;
  queries.rows = rows;
  if (!with_keys) queries.kv.num_kv_heads = 0;
  const DealtAttention& all = args(rank);
  const QueryShare& to = all.dealt.shares[rank];
  LaunchAppendCodes(ctx, queries, all.qk.q_max, all.av.q_max, {to.words, to.scales},
                    with_keys ? own.rows.slots : nullptr);
  return Shared(rank, share.words, share.end);
}

void QueryRows::Run(bool with_keys, RingProbe* probe) {
  exchange_.Begin(part(0).call->site, part(0).places().area_bytes(), probe);
  for (int rank = 0; rank < ranks(); ++rank) {
    DeviceGuard guard(part(rank).ctx->device);
    args_.push_back(ArgsOf(rank));
  }
  const auto context = [&](int rank) -> DeviceContext& { return *part(rank).ctx; };
  exchange_.Step([&](int rank) { return Append(rank, with_keys); });
  exchange_.Step([&](int rank) {
    LaunchDealtScores(context(rank), args(rank));
    return Shared(rank, layout(rank).score_max, layout(rank).weight_max);
  });
  exchange_.Step([&](int rank) {
    LaunchDealtLanes(context(rank), args(rank));
    return Shared(rank, layout(rank).lanes, layout(rank).words);
  });
  exchange_.Step([&](int rank) {
    LaunchDealtWeights(context(rank), args(rank));
    return Shared(rank, layout(rank).weight_max, layout(rank).sums);
  });
  exchange_.Step([&](int rank) {
    LaunchDealtValues(context(rank), args(rank));
    return Shared(rank, layout(rank).sums, layout(rank).lanes);
  });
  exchange_.Step([&](int rank) {
    if (own_rows_[static_cast<size_t>(rank)] > 0) LaunchDealtOutput(context(rank), args(rank));
    return SharedBytes{};
  });
}

}  // namespace

void AttendByQuery(const std::vector<RingPart>& parts, QueryExchange& exchange, RingProbe* probe) {
  const PassLayout& pass = parts.front().pass->layout();
  const auto rows = static_cast<int64_t>(pass.ids.size());
  int64_t most = 1;
  for (const PassLayout::Sequence& sequence : pass.sequences) {
    for (const RingPart& part : parts) {
      most = std::max(most, part.stripe.Below(int64_t{sequence.start_position} + sequence.num_rows));
    }
  }
  const int64_t stride = (most + 3) / 4 * 4;
  const RingPart& front = parts.front();
  const KvCacheSpec& spec = front.cache->spec();
  const int num_heads = front.call->num_heads;
  const int64_t at_once = QueryScoreRows(spec, num_heads, front.pass->limits(), stride);
  const bool all = rows <= at_once;
  if (!all) {
    // QueryRows appends keys only together with all rows of the pass (QueryRows::Append). With several batches of rows,
    // all keys are therefore appended before the first batch.
    for (const RingPart& part : parts) AppendKeys(part);
  }
  // Only its own device reads this scratch, so later ops on the stream may reuse it at once.
  std::deque<Scratch> scratch;
  std::vector<float*> scores;
  for (const RingPart& part : parts) {
    DeviceGuard guard(part.ctx->device);
    scores.push_back(
        scratch.emplace_back(part.ctx->workspace).Take<float>(std::min(rows, at_once) * num_heads * stride));
  }
  for (int64_t first = 0; first < rows; first += at_once) {
    QueryRows(parts, exchange, scores, first, std::min(at_once, rows - first), stride).Run(all, probe);
  }
}

}  // namespace stoch::cuda
