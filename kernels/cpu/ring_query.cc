// SPDX-License-Identifier: Apache-2.0
// Attention of a few rows over dealt positions: every rank works on the lanes it owns, and small results are exchanged.
#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "kernels/cpu/ring_attention.h"
#include "kernels/math/elementary.h"
#include "kernels/math/gated.h"
#include "kernels/math/nonlinear_table.h"
#include "kernels/math/quantize.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu {
namespace {

// The query heads of one KV head in one row, whoever has it.
struct Query {
  size_t sequence = 0;
  int owner = 0;    // rank
  int64_t row = 0;  // row in the owner's pass
  int64_t position = 0;
  int64_t kv_head = 0;
};

// State of one query on one rank; [group] each where it says so.
struct Share {
  int64_t begin = 0, end = 0;  // local positions that the row sees
  std::vector<float> scores;   // [group][end - begin]: scores, then e, then p, then p' (kPerToken)
  std::vector<float> maxima;   // [group]: of scores
  std::vector<float> lanes;    // [group][kRowLanes / ranks]: sums of e
  std::vector<uint32_t> bits;  // [group]: of the largest |p'|
  std::vector<float> values;   // kExact: [group][stripe width][head_dim]: lanes of p v
  std::vector<int32_t> sums;   // kPerToken: [group][channels]

  int64_t size() const { return end - begin; }
};

// Values that the ranks agree on.
struct Agreed {
  std::vector<float> maximum, sum, scale;  // [group]
};

class QueryPass {
 public:
  QueryPass(Context& context, const RingState& state)
      : context_(context),
        state_(state),
        spec_(state.cache(0).spec()),
        layer_(state.part(0).cache_layer),
        group_(state.part(0).num_heads / spec_.num_kv_heads),
        ranks_(state.ranks()),
        exact_(spec_.mode == AttentionMode::kExact) {
    for (const size_t s : state.by_query) {
      for (int rank = 0; rank < ranks_; ++rank) {
        const DealtRows& rows = state.rows(rank, s);
        for (int32_t i = 0; i < rows.num_rows; ++i) {
          const int64_t position = state.stripe(rank).Absolute(rows.first_local + i);
          for (int64_t h = 0; h < spec_.num_kv_heads; ++h) {
            queries_.push_back({s, rank, rows.first_row + i, position, h});
          }
        }
      }
    }
    shares_.resize(queries_.size() * static_cast<size_t>(ranks_));
    agreed_.resize(queries_.size());
  }

  // Every step runs on all ranks before the next one begins: in between lies an exchange.
  void Run() {
    OnEveryRank([this](const Query& query, int rank, Share& share) { Score(query, rank, share); });
    Agree([this](size_t q, Agreed& agreed) { AgreeOnMaxima(q, agreed); });
    OnEveryRank([this](const Query& query, int rank, Share& share) { Exponentials(query, rank, share); });
    Agree([this](size_t q, Agreed& agreed) { AgreeOnSums(q, agreed); });
    OnEveryRank([this](const Query& query, int rank, Share& share) { Probabilities(query, rank, share); });
    if (!exact_) {
      Agree([this](size_t q, Agreed& agreed) { AgreeOnScales(q, agreed); });
      OnEveryRank([this](const Query& query, int rank, Share& share) { AddValues(query, rank, share); });
    }
    Agree([this](size_t q, Agreed& agreed) { Output(q, agreed); });
    if (!finite_.load()) {
      context_.finite.Report(state_.cache(0).device(), state_.call.site, "the probabilities");
    }
  }

 private:
  template <typename Step>
  void OnEveryRank(const Step& step) {
    context_.pool.ParallelFor(static_cast<int64_t>(shares_.size()), [&](int64_t i, int) {
      step(queries_[static_cast<size_t>(i / ranks_)], static_cast<int>(i % ranks_), shares_[static_cast<size_t>(i)]);
    });
  }
  template <typename Step>
  void Agree(const Step& step) {
    context_.pool.ParallelFor(static_cast<int64_t>(queries_.size()),
                              [&](int64_t i, int) { step(static_cast<size_t>(i), agreed_[static_cast<size_t>(i)]); });
  }
  const Share& share(size_t query, int rank) const {
    return shares_[query * static_cast<size_t>(ranks_) + static_cast<size_t>(rank)];
  }
  const Agreed& agreed(const Query& query) const { return agreed_[static_cast<size_t>(&query - queries_.data())]; }

  // Where a local position of a sequence is in a rank's cache.
  struct Place {
    int64_t slab = 0;
    int64_t at = 0;    // position in the slab
    int64_t left = 0;  // positions from there on in a row
  };
  Place PlaceOf(const Query& query, int rank, int64_t local) const {
    const int64_t per_page = spec_.page_tokens / ranks_;
    const int64_t page = state_.pass.sequences[query.sequence].pages[static_cast<size_t>(local / per_page)];
    const CpuKvCache& cache = state_.cache(rank);
    return {cache.Slab(layer_, static_cast<int32_t>(page / ranks_), query.kv_head),
            page % ranks_ * per_page + local % per_page, per_page - local % per_page};
  }
  const float* Q(const Query& query) const {
    const TensorView& q = state_.part(query.owner).q;
    return q.ptr<const float>() + query.row * q.step(0) + query.kv_head * group_ * spec_.head_dim;
  }

  void Score(const Query& query, int rank, Share& share) const;
  void ScoreCodes(const Query& query, int rank, Share& share) const;
  void AgreeOnMaxima(size_t query, Agreed& agreed) const;
  void Exponentials(const Query& query, int rank, Share& share) const;
  void AgreeOnSums(size_t query, Agreed& agreed) const;
  void Probabilities(const Query& query, int rank, Share& share) const;
  void AgreeOnScales(size_t query, Agreed& agreed);
  void AddValues(const Query& query, int rank, Share& share) const;
  void Output(size_t query, const Agreed& agreed) const;

  int64_t channels() const { return state_.cache(0).channel_blocks() * kBlockRows; }

  Context& context_;
  const RingState& state_;
  const KvCacheSpec& spec_;
  int layer_;
  int64_t group_;
  int ranks_;
  bool exact_;
  std::vector<Query> queries_;
  std::vector<Share> shares_;   // [query][rank]
  std::vector<Agreed> agreed_;  // [query]
  std::atomic<bool> finite_{true};
};

void QueryPass::Score(const Query& query, int rank, Share& share) const {
  const int64_t window = state_.part(0).window;
  const Stripe stripe = state_.stripe(rank);
  share.begin = stripe.Below(window > 0 ? std::max<int64_t>(0, query.position - window + 1) : 0);
  share.end = stripe.Below(query.position + 1);
  share.scores.resize(static_cast<size_t>(group_ * share.size()));
  share.maxima.assign(static_cast<size_t>(group_), -std::numeric_limits<float>::infinity());
  if (exact_) {
    for (int64_t l = share.begin, count; l < share.end; l += count) {
      const Place place = PlaceOf(query, rank, l);
      count = std::min(place.left, share.end - l);
      const ExactRows k{state_.cache(rank).k_values(place.slab) + place.at * spec_.head_dim, spec_.head_dim,
                        DType::kF32};
      context_.simd.dot_rows(Q(query), spec_.head_dim, group_, k, count, spec_.head_dim,
                             share.scores.data() + (l - share.begin), share.size(), false);
    }
    const float scale = ScoreScale(spec_);
    for (float& score : share.scores) score = score * scale;
  } else {
    ScoreCodes(query, rank, share);
  }
  if (const float cap = state_.part(0).score_cap; cap > 0) {
    for (float& score : share.scores) score = SoftCap(score, cap);
  }
  for (int64_t n = 0; n < group_; ++n) {
    float& most = share.maxima[static_cast<size_t>(n)];
    for (int64_t i = 0; i < share.size(); ++i) {
      most = std::max(most, share.scores[static_cast<size_t>(n * share.size() + i)]);
    }
  }
}

void QueryPass::ScoreCodes(const Query& query, int rank, Share& share) const {
  const CpuKvCache& cache = state_.cache(rank);
  const ScLookup& qk = *cache.qk(layer_).lookup;
  ScChunks chunk;
  chunk.cols = chunk.size = spec_.head_dim;
  chunk.count = 1;
  const ScQuantizer quantizer(context_.pool, context_.simd, *qk.op, chunk, ScScopes{1, 1}, 1, nullptr);
  ScRows q;
  q.Resize(qk, chunk, group_, spec_.head_dim);
  std::vector<ScLeft> left;
  for (int64_t n = 0; n < group_; ++n) {
    quantizer.Quantize(0, Q(query) + n * spec_.head_dim, q.row(n));
    q.Derive(qk, n);
    left.push_back(q.Left(n, 0));
  }
  const float scale = ScoreScale(spec_);
  std::vector<int32_t> acc(static_cast<size_t>(group_ * kBlockRows));
  int64_t known = -1;  // whose products acc has
  for (int64_t l = share.begin, count; l < share.end; l += count) {
    const Place place = PlaceOf(query, rank, l);
    count = std::min(place.left, share.end - l);
    if (place.slab != known) {
      context_.simd.sc_block(qk.table(), left.data(), group_, 0, spec_.head_dim, cache.k_codes(place.slab),
                             spec_.head_dim * kBlockRows, 1, acc.data());
      known = place.slab;
    }
    const int64_t key_scales = cache.spec().key_scales;
    const float* k_scales = cache.k_scales(place.slab) + place.at * key_scales;
    for (int64_t n = 0; n < group_; ++n) {
      float* scores = share.scores.data() + n * share.size() + (l - share.begin);
      const int32_t* sums = acc.data() + n * kBlockRows + place.at;
      for (int64_t i = 0; i < count; ++i) {
        scores[i] = BipolarProduct(sums[i], qk.op->gain, q.scale(n, 0), k_scales[i * key_scales]) * scale;
      }
    }
  }
}

void QueryPass::AgreeOnMaxima(size_t query, Agreed& agreed) const {
  agreed.maximum = share(query, 0).maxima;
  for (int rank = 1; rank < ranks_; ++rank) {
    for (size_t n = 0; n < agreed.maximum.size(); ++n) {
      agreed.maximum[n] = std::max(agreed.maximum[n], share(query, rank).maxima[n]);
    }
  }
}

void QueryPass::Exponentials(const Query& query, int /*rank*/, Share& share) const {
  const int64_t lanes = kRowLanes / ranks_;
  const NonlinearTable* table = state_.part(0).exp_table;
  share.lanes.assign(static_cast<size_t>(group_ * lanes), 0.0f);
  for (int64_t n = 0; n < group_; ++n) {
    float* scores = share.scores.data() + n * share.size();
    float* own = share.lanes.data() + n * lanes;
    for (int64_t i = 0; i < share.size(); ++i) {
      const float x = scores[i] - agreed(query).maximum[static_cast<size_t>(n)];
      scores[i] = table == nullptr ? Exp(x) : table->ExpAt(x);
      float& lane = own[(share.begin + i) % lanes];
      lane = lane + scores[i];
    }
  }
}

void QueryPass::AgreeOnSums(size_t query, Agreed& agreed) const {
  const int64_t own = kRowLanes / ranks_;
  for (int64_t n = 0; n < group_; ++n) {
    float lanes[kRowLanes] = {};
    for (int rank = 0; rank < ranks_; ++rank) {
      for (int64_t i = 0; i < own; ++i) {
        lanes[state_.stripe(rank).Absolute(i)] = share(query, rank).lanes[static_cast<size_t>(n * own + i)];
      }
    }
    agreed.sum.push_back(FoldLanes<kRowLanes>(lanes));
  }
}

void QueryPass::Probabilities(const Query& query, int rank, Share& share) const {
  const CpuKvCache& cache = state_.cache(rank);
  const int64_t width = state_.stripe(rank).width();
  const int64_t head_dim = spec_.head_dim;
  if (exact_) share.values.assign(static_cast<size_t>(group_ * width * head_dim), 0.0f);
  for (int64_t n = 0; n < group_; ++n) {
    float* p = share.scores.data() + n * share.size();
    const float sum = agreed(query).sum[static_cast<size_t>(n)];
    for (int64_t l = share.begin, count; l < share.end; l += count) {
      const Place place = PlaceOf(query, rank, l);
      count = std::min(place.left, share.end - l);
      float* own = p + (l - share.begin);
      for (int64_t i = 0; i < count; ++i) {
        own[i] = own[i] / sum;
        if (!exact_) {
          own[i] = own[i] * cache.v_scales(place.slab)[place.at + i];
          continue;
        }
        const float* v = cache.v_values(place.slab) + (place.at + i) * head_dim;
        float* lane = share.values.data() + (n * width + (l + i) % width) * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) lane[d] = Fma(own[i], v[d], lane[d]);
      }
    }
    if (!exact_) share.bits.push_back(context_.simd.max_abs_bits(p, share.size()));
  }
}

void QueryPass::AgreeOnScales(size_t query, Agreed& agreed) {
  const ScOperator& av = *state_.cache(0).av(layer_).lookup->op;
  for (size_t n = 0; n < static_cast<size_t>(group_); ++n) {
    uint32_t bits = 0;
    for (int rank = 0; rank < ranks_; ++rank) bits = std::max(bits, share(query, rank).bits[n]);
    const float most = BitsToFloat(bits);
    const bool finite = IsFinite(most);
    if (!finite) finite_.store(false, std::memory_order_relaxed);
    agreed.scale.push_back(finite ? BipolarScale(most, av.q_max, av.scale_floor) : 0.0f);
  }
}

void QueryPass::AddValues(const Query& query, int rank, Share& share) const {
  share.sums.assign(static_cast<size_t>(group_ * channels()), 0);
  if (share.size() == 0) return;
  const CpuKvCache& cache = state_.cache(rank);
  const ScLookup& av = *cache.av(layer_).lookup;
  const Stripe stripe = state_.stripe(rank);
  const int64_t width = stripe.width();
  // Codes at their absolute positions, which masks go by; those of other ranks stay 0 and are not looked at.
  ScChunks chunk;
  chunk.cols = chunk.size = query.position + 1;
  chunk.count = 1;
  ScRows p;
  p.Resize(av, chunk, group_, width);
  std::vector<uint8_t> codes(static_cast<size_t>(share.size()));
  for (int64_t n = 0; n < group_; ++n) {
    const float scale = agreed(query).scale[static_cast<size_t>(n)];
    if (scale == 0.0f) return;  // NaN or infinity
    const ScQuantizer::Row row = p.row(n);
    std::fill(row.codes, row.codes + chunk.cols, uint8_t{0});
    context_.simd.quantize(share.scores.data() + n * share.size(), share.size(), scale, av.op->q_max, codes.data());
    for (int64_t i = 0; i < share.size(); ++i) {
      row.codes[stripe.Absolute(share.begin + i)] = codes[static_cast<size_t>(i)];
    }
    p.Derive(av, n);
  }
  std::vector<ScLeft> left(static_cast<size_t>(group_));
  std::vector<int32_t> acc(static_cast<size_t>(group_ * kBlockRows));
  for (int64_t l = share.begin / width * width; l < share.end; l += width) {
    const int64_t position = stripe.Absolute(l);
    const int64_t dims = std::min(width, share.end - l);
    const Place place = PlaceOf(query, rank, l);
    for (int64_t n = 0; n < group_; ++n) {
      left[static_cast<size_t>(n)] = p.Left(n, position);
      if (av.wide_row.empty()) left[static_cast<size_t>(n)].num_wide = 0;
    }
    for (int64_t block = 0; block < cache.channel_blocks(); ++block) {
      const uint8_t* v = cache.v_codes(place.slab) + (block * spec_.page_tokens + place.at) * kBlockRows;
      context_.simd.sc_block(av.table(), left.data(), group_, position, dims, v, 0, 1, acc.data());
      for (int64_t n = 0; n < group_; ++n) {
        int32_t* to = share.sums.data() + n * channels() + block * kBlockRows;
        for (int64_t j = 0; j < kBlockRows; ++j) to[j] += acc[static_cast<size_t>(n * kBlockRows + j)];
      }
    }
  }
}

void QueryPass::Output(size_t index, const Agreed& agreed) const {
  const Query& query = queries_[index];
  const TensorView& out = state_.part(query.owner).out;
  const int64_t head_dim = spec_.head_dim;
  float* row = out.ptr<float>() + query.row * out.step(0) + query.kv_head * group_ * head_dim;
  const int64_t width = kStripePeriod / ranks_;
  for (int64_t n = 0; n < group_; ++n) {
    for (int64_t d = 0; d < head_dim; ++d) {
      if (exact_) {
        float lanes[kDotLanes] = {};
        for (int64_t lane = 0; lane < kDotLanes; ++lane) {
          lanes[lane] = share(index, static_cast<int>(lane / width))
                            .values[static_cast<size_t>((n * width + lane % width) * head_dim + d)];
        }
        row[n * head_dim + d] = FoldLanes<kDotLanes>(lanes);
        continue;
      }
      int32_t sum = 0;
      for (int rank = 0; rank < ranks_; ++rank) {
        sum += share(index, rank).sums[static_cast<size_t>(n * channels() + d)];
      }
      const float gain = state_.cache(0).av(layer_).lookup->op->gain;
      row[n * head_dim + d] = (static_cast<float>(sum) * gain) * agreed.scale[static_cast<size_t>(n)];
    }
  }
}

}  // namespace

bool HasQueryRoute(const CpuKvCache& cache, int layer) {
  switch (cache.spec().mode) {
    case AttentionMode::kExact: return true;
    case AttentionMode::kPerToken: break;
    case AttentionMode::kPerHead:
    case AttentionMode::kPerRow: return false;
  }
  const AttentionProduct& qk = cache.qk(layer);
  const AttentionProduct& av = cache.av(layer);
  const bool one_length = qk.extras == nullptr && av.extras == nullptr;
  const bool plain_sums = HasPlainSums(qk.op().config) && HasPlainSums(av.op().config);
  const bool codes = av.op().code == ScCode::kSignMagnitude && IntBits(av.op().config.arith) == 0;  // as AddValues has
  return one_length && plain_sums && codes && !IsNumberFormat(qk.op().config.arith) &&
         !IsNumberFormat(av.op().config.arith);
}

void AttendByQuery(Context& context, const RingState& state) { QueryPass(context, state).Run(); }

}  // namespace stoch::cpu
