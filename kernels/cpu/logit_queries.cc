// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/logit_queries.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/call_check.h"
#include "kernels/logit_query_check.h"
#include "kernels/math/sampling.h"

namespace stoch::cpu {
namespace {

// Logits whose weights one thread computes at a time, so that a single row keeps all threads busy.
constexpr int64_t kPart = 8192;

class CpuLogitQueries final : public LogitQueryBuffer {
 public:
  CpuLogitQueries(Device device, const LogitQueryLimits& limits) : device_(device), limits_(limits) {}

  Device device() const override { return device_; }
  int64_t bytes() const override { return 0; }
  std::span<const int32_t> picked() const override { return picked_; }
  std::span<const LogProbAnswer> logprobs() const override { return logprobs_; }

  // The entries that the spans of picks refer to are copied: they may be gone when a pass runs.
  void Upload(const LogitQueries& queries) {
    const int64_t entries = CheckLogitQueries(queries, limits_);
    queries_ = queries;
    biases_.clear();
    counts_.clear();
    masks_.clear();
    biases_.reserve(static_cast<size_t>(entries));
    counts_.reserve(static_cast<size_t>(entries));
    size_t mask_words = 0;
    for (const TokenPick& pick : queries_.picks) mask_words += pick.allowed.size();
    masks_.reserve(mask_words);
    for (TokenPick& pick : queries_.picks) {
      const auto bias = biases_.insert(biases_.end(), pick.biases.begin(), pick.biases.end());
      pick.biases = {bias, biases_.end()};
      const auto count = counts_.insert(counts_.end(), pick.counts.begin(), pick.counts.end());
      pick.counts = {count, counts_.end()};
      const auto mask = masks_.insert(masks_.end(), pick.allowed.begin(), pick.allowed.end());
      pick.allowed = {mask, masks_.end()};
    }
    picked_.assign(queries_.picks.size(), -1);
    logprobs_.assign(queries_.logprobs.size(), {});
  }

  const LogitQueries& queries() const { return queries_; }
  std::vector<int32_t>& picked_ids() { return picked_; }
  std::vector<LogProbAnswer>& answers() { return logprobs_; }
  const LogitQueryLimits& limits() const { return limits_; }

 private:
  Device device_;
  LogitQueryLimits limits_;
  LogitQueries queries_;
  std::vector<LogitBias> biases_;
  std::vector<TokenCount> counts_;
  std::vector<uint32_t> masks_;
  std::vector<int32_t> picked_;
  std::vector<LogProbAnswer> logprobs_;
};

// One pick while it is made.
struct Draw {
  const TokenPick* pick = nullptr;
  const float* logits = nullptr;       // the row's logits, or `adjusted`
  std::vector<float> adjusted;         // with biases, penalties and mask
  uint64_t first = 0;                  // rank of the likeliest token
  bool finite = false;                 // all logits are
  uint64_t cut = 0;                    // rank of the last token that top_k and top_p leave
  std::vector<uint64_t> part_weights;  // weight of each kPart logits, of the tokens that are left

  float max() const { return RankLogit(first); }
  uint64_t Weight(int64_t id) const { return SampleWeight(logits[id], max(), pick->temperature); }
};

bool IsAdjusted(const TokenPick& pick) {
  return !pick.biases.empty() || !pick.allowed.empty() ||
         (!pick.counts.empty() &&
          (pick.repeat_penalty != 1.0f || pick.presence_penalty != 0.0f || pick.frequency_penalty != 0.0f));
}

void Adjust(Draw& draw, const float* row, int64_t vocab) {
  draw.logits = row;
  const TokenPick& pick = *draw.pick;
  if (!IsAdjusted(pick)) return;
  draw.adjusted.assign(row, row + vocab);
  draw.logits = draw.adjusted.data();
  for (const LogitBias& entry : pick.biases) {
    float& logit = draw.adjusted[static_cast<size_t>(entry.id)];
    logit = logit + entry.bias;
  }
  for (const TokenCount& entry : pick.counts) {
    float& logit = draw.adjusted[static_cast<size_t>(entry.id)];
    logit = Penalize(logit, entry.generated, pick.repeat_penalty, pick.presence_penalty, pick.frequency_penalty);
  }
  if (pick.allowed.empty()) return;
  for (int32_t id = 0; id < vocab; ++id) {
    if (!IsAllowed(pick.allowed.data(), id)) draw.adjusted[static_cast<size_t>(id)] = DisallowedLogit();
  }
}

void FindFirst(Draw& draw, int64_t vocab) {
  uint64_t first = 0;
  bool finite = true;
  for (int64_t i = 0; i < vocab; ++i) {
    first = std::max(first, RankKey(draw.logits[i], static_cast<int32_t>(i)));
    finite = finite && IsFinite(draw.logits[i]);
  }
  draw.first = first;
  draw.finite = finite;
}

// The rank of the last of the first tokens whose weight reaches `target`; `ranks` is reordered. A quickselect by
// weight: each half is looked at once, so time grows with the vocabulary, not with its logarithm too.
uint64_t CutByWeight(const Draw& draw, std::vector<uint64_t>& ranks, uint64_t target) {
  size_t begin = 0, end = ranks.size();
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(ranks.begin() + static_cast<std::ptrdiff_t>(begin),
                     ranks.begin() + static_cast<std::ptrdiff_t>(middle),
                     ranks.begin() + static_cast<std::ptrdiff_t>(end), std::greater<>());
    uint64_t weight = 0;
    for (size_t i = begin; i < middle; ++i) weight += draw.Weight(RankId(ranks[i]));
    if (weight >= target) {
      end = middle;
    } else {
      target -= weight;
      begin = middle;
    }
  }
  return ranks[begin];
}

// Leaves what top_k and top_p leave.
void Cut(Draw& draw, int64_t vocab) {
  const TokenPick& pick = *draw.pick;
  const bool by_count = pick.top_k > 0 && pick.top_k < vocab;
  if (!by_count && pick.top_p >= 1) return;
  std::vector<uint64_t> ranks(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < vocab; ++i) {
    ranks[static_cast<size_t>(i)] = RankKey(draw.logits[i], static_cast<int32_t>(i));
  }
  if (by_count) {
    const auto last = ranks.begin() + pick.top_k - 1;
    std::nth_element(ranks.begin(), last, ranks.end(), std::greater<>());
    draw.cut = *last;
    ranks.resize(static_cast<size_t>(pick.top_k));
  }
  if (pick.top_p >= 1) return;
  uint64_t total = 0;
  for (const uint64_t rank : ranks) total += draw.Weight(RankId(rank));
  draw.cut = CutByWeight(draw, ranks, TopPWeight(pick.top_p, total));
}

// The weight of a token, 0 where it was left out.
uint64_t WeightLeft(const Draw& draw, int64_t id) {
  if (RankKey(draw.logits[id], static_cast<int32_t>(id)) < draw.cut) return 0;
  const uint64_t weight = draw.Weight(id);
  return weight >= MinPWeight(draw.pick->min_p) ? weight : 0;
}

int32_t Locate(const Draw& draw, int64_t vocab) {
  uint64_t total = 0;
  for (const uint64_t weight : draw.part_weights) total += weight;
  uint64_t left = DrawThreshold(draw.pick->random, total);
  size_t part = 0;
  while (left >= draw.part_weights[part]) left -= draw.part_weights[part++];
  for (int64_t i = static_cast<int64_t>(part) * kPart; i < vocab; ++i) {
    const uint64_t weight = WeightLeft(draw, i);
    if (left < weight) return static_cast<int32_t>(i);
    left -= weight;
  }
  return RankId(draw.first);  // not reached: the threshold is below the total
}

}  // namespace

std::unique_ptr<LogitQueryBuffer> MakeLogitQueries(Device device, const LogitQueryLimits& limits) {
  CheckLogitQueryLimits(limits);
  return std::make_unique<CpuLogitQueries>(device, limits);
}

void UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries) {
  static_cast<CpuLogitQueries&>(buffer).Upload(queries);
}

namespace {

// Logits of the row of a query, nullptr where it has none.
const float* RowOf(const OpSite& site, const LogitRows& logits, int32_t row) {
  if (row < 0) return nullptr;
  const int64_t index = row - logits.first_row;
  if (index < 0 || index >= logits.view.dim(0)) Reject(site, "row " + std::to_string(row) + " is not among the logits");
  return logits.view.ptr<const float>() + index * logits.view.step(0);
}

}  // namespace

void PickTokens(Context& context, const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) {
  auto& queries = static_cast<CpuLogitQueries&>(buffer);
  const OpSite site{-1, "pick"};
  CheckLogitRows(site, logits, queries, queries.limits().vocab_size, range,
                 static_cast<int64_t>(queries.queries().picks.size()));
  const int64_t vocab = queries.limits().vocab_size;
  std::vector<Draw> draws(static_cast<size_t>(range.count));
  std::vector<const float*> rows;
  for (int64_t i = 0; i < range.count; ++i) {
    draws[static_cast<size_t>(i)].pick = &queries.queries().picks[static_cast<size_t>(range.first + i)];
    rows.push_back(RowOf(site, logits, draws[static_cast<size_t>(i)].pick->row));
  }
  const int64_t parts = (vocab + kPart - 1) / kPart;
  context.pool.ParallelFor(range.count, [&](int64_t i, int) {
    if (rows[static_cast<size_t>(i)] == nullptr) return;
    Draw& draw = draws[static_cast<size_t>(i)];
    Adjust(draw, rows[static_cast<size_t>(i)], vocab);
    FindFirst(draw, vocab);
    if (!draw.finite || draw.pick->temperature == 0) return;
    Cut(draw, vocab);
    draw.part_weights.resize(static_cast<size_t>(parts));
  });
  context.pool.ParallelFor(range.count * parts, [&](int64_t item, int) {
    Draw& draw = draws[static_cast<size_t>(item / parts)];
    if (draw.part_weights.empty()) return;
    const int64_t part = item % parts;
    uint64_t weight = 0;
    for (int64_t i = part * kPart; i < std::min(vocab, (part + 1) * kPart); ++i) weight += WeightLeft(draw, i);
    draw.part_weights[static_cast<size_t>(part)] = weight;
  });
  for (int64_t i = 0; i < range.count; ++i) {
    const Draw& draw = draws[static_cast<size_t>(i)];
    if (rows[static_cast<size_t>(i)] == nullptr) continue;
    int32_t id = -1;
    if (draw.finite) id = draw.pick->temperature == 0 ? RankId(draw.first) : Locate(draw, vocab);
    queries.picked_ids()[static_cast<size_t>(range.first + i)] = id;
  }
}

void LogProbs(Context& context, const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) {
  auto& queries = static_cast<CpuLogitQueries&>(buffer);
  const OpSite site{-1, "logprobs"};
  CheckLogitRows(site, logits, queries, queries.limits().vocab_size, range,
                 static_cast<int64_t>(queries.queries().logprobs.size()));
  const int64_t vocab = queries.limits().vocab_size;
  std::vector<const float*> rows;
  for (int64_t i = 0; i < range.count; ++i) {
    rows.push_back(RowOf(site, logits, queries.queries().logprobs[static_cast<size_t>(range.first + i)].row));
  }
  context.pool.ParallelFor(range.count, [&](int64_t i, int) {
    const float* row = rows[static_cast<size_t>(i)];
    if (row == nullptr) return;
    const LogProbQuery& query = queries.queries().logprobs[static_cast<size_t>(range.first + i)];
    LogProbAnswer& answer = queries.answers()[static_cast<size_t>(range.first + i)];
    // The first of the ranking, kept sorted: few, so that inserting beats a heap.
    const size_t top = std::min(static_cast<size_t>(std::max(query.top, 1)), static_cast<size_t>(vocab));
    std::vector<uint64_t> first;
    for (int64_t id = 0; id < vocab; ++id) {
      const uint64_t rank = RankKey(row[id], static_cast<int32_t>(id));
      if (first.size() == top && rank < first.back()) continue;
      if (first.size() == top) first.pop_back();
      first.insert(std::upper_bound(first.begin(), first.end(), rank, std::greater<>()), rank);
    }
    const float max = row[RankId(first[0])];
    const double log_sum = Log(static_cast<double>(context.simd.exp_sum(row, vocab, max, nullptr)));
    const auto logprob = [&](int32_t id) {
      return (static_cast<double>(row[id]) - static_cast<double>(max)) - log_sum;
    };
    answer.id = query.id >= 0 ? query.id : queries.picked()[static_cast<size_t>(query.pick)];
    answer.logprob = answer.id >= 0 ? logprob(answer.id) : 0;
    answer.top = std::min(query.top, static_cast<int32_t>(top));
    for (int32_t k = 0; k < answer.top; ++k) {
      answer.top_ids[k] = RankId(first[static_cast<size_t>(k)]);
      answer.top_logprobs[k] = logprob(answer.top_ids[k]);
    }
  });
}

}  // namespace stoch::cpu
