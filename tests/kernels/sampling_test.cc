// SPDX-License-Identifier: Apache-2.0
// Picked tokens and log-probabilities of every backend, against a reference that sorts.
#include "kernels/math/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/logit_query_check.h"
#include "kernels/math/random.h"
#include "kernels/math/reduce.h"
#include "tests/kernels/device_tensor.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using test::DeviceTensor;

// docs/numerics.md, read as it stands.
int32_t Reference(std::vector<float> logits, const TokenPick& pick) {
  for (const LogitBias& entry : pick.biases) logits[static_cast<size_t>(entry.id)] += entry.bias;
  for (const TokenCount& entry : pick.counts) {
    float& logit = logits[static_cast<size_t>(entry.id)];
    if (pick.repeat_penalty != 1) logit = logit > 0 ? logit / pick.repeat_penalty : logit * pick.repeat_penalty;
    if (entry.generated > 0) {
      logit -= pick.presence_penalty + pick.frequency_penalty * static_cast<float>(entry.generated);
    }
  }
  for (size_t id = 0; id < logits.size() && !pick.allowed.empty(); ++id) {
    if ((pick.allowed[id / 32] >> (id % 32) & 1) == 0) logits[id] = std::numeric_limits<float>::lowest();
  }
  for (const float logit : logits) {
    if (!std::isfinite(logit)) return -1;
  }
  std::vector<int32_t> ranking(logits.size());
  std::iota(ranking.begin(), ranking.end(), 0);
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::stable_sort(ranking.begin(), ranking.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  if (pick.temperature == 0) return ranking[0];
  const float max = logit(ranking[0]);
  const auto weight = [&](int32_t id) {
    return static_cast<uint64_t>(std::rint(Exp((logit(id) - max) / pick.temperature) * 4294967296.0f));
  };
  if (pick.top_k > 0 && pick.top_k < static_cast<int32_t>(ranking.size())) {
    ranking.resize(static_cast<size_t>(pick.top_k));
  }
  uint64_t total = 0;
  for (const int32_t id : ranking) total += weight(id);
  const auto target = static_cast<uint64_t>(std::rint(pick.top_p * static_cast<double>(total)));
  uint64_t reached = 0;
  std::vector<int32_t> left;
  for (const int32_t id : ranking) {
    if (!left.empty() && reached >= target) break;
    reached += weight(id);
    left.push_back(id);
  }
  std::erase_if(left,
                [&](int32_t id) { return weight(id) < static_cast<uint64_t>(std::rint(pick.min_p * 4294967296.0)); });
  std::sort(left.begin(), left.end());
  total = 0;
  for (const int32_t id : left) total += weight(id);
  const uint64_t threshold = DrawThreshold(pick.random, total);
  uint64_t running = 0;
  for (const int32_t id : left) {
    running += weight(id);
    if (running > threshold) return id;
  }
  return -2;
}

std::vector<float> Normal(uint64_t seed, size_t count, float deviation) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Rows that are hard for counting: many equal ones, two far apart scales, one above all, both zeros, a slope.
std::vector<std::vector<float>> Rows(size_t vocab) {
  std::vector<std::vector<float>> rows = {Normal(1, vocab, 3.0f), Normal(2, vocab, 0.01f),
                                          std::vector<float>(vocab, -2.5f), Normal(3, vocab, 1e-30f)};
  rows[3][vocab / 2] = 20.0f;
  rows.push_back(Normal(4, vocab, 2.0f));
  for (float& value : rows.back()) value = std::floor(value);
  rows.emplace_back(vocab);
  for (size_t i = 0; i < vocab; ++i) rows.back()[i] = i % 3 == 0 ? -0.0f : 0.0f;
  rows.emplace_back(vocab);
  for (size_t i = 0; i < vocab; ++i) rows.back()[i] = -static_cast<float>(i % 1000) * 0.05f;
  rows.push_back(Normal(5, vocab, 3e37f));
  return rows;
}

struct PickEntries {
  std::vector<LogitBias> biases;
  std::vector<TokenCount> counts;
  std::vector<uint32_t> allowed;
};

// One token, a few, half of them or nearly all.
std::vector<uint32_t> RandomMask(std::mt19937_64& random, size_t vocab) {
  std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(static_cast<int64_t>(vocab))));
  const uint64_t kind = random() % 4;
  for (uint32_t& word : mask) {
    const auto bits = static_cast<uint32_t>(random());
    if (kind == 1) word = random() % 16 == 0 ? bits : 0;
    if (kind == 2) word = bits;
    if (kind == 3) word = bits | static_cast<uint32_t>(random()) | static_cast<uint32_t>(random());
  }
  const size_t one = random() % vocab;
  mask[one / 32] |= 1u << (one % 32);
  return mask;
}

// Options of all kinds, as users mix them.
TokenPick RandomPick(std::mt19937_64& random, size_t vocab, PickEntries& entries) {
  const auto choose = [&](auto... values) {
    const double list[] = {static_cast<double>(values)...};
    return list[random() % (sizeof(list) / sizeof(list[0]))];
  };
  TokenPick pick;
  pick.temperature = static_cast<float>(choose(0, 0.1, 0.7, 1, 1, 1, 2, 1e-30, 1e6));
  pick.top_k = static_cast<int32_t>(choose(0, 0, 1, 2, 40, 300, 1e9));
  pick.top_p = choose(1, 1, 0.9, 0.5, 1e-9, 0.999999);
  pick.min_p = choose(0, 0, 0, 0.05, 1, 1e-12);
  pick.random = random();
  if (random() % 3 == 0) {
    pick.repeat_penalty = static_cast<float>(choose(1, 1.3, 0.5));
    pick.presence_penalty = static_cast<float>(choose(0, 0.7, -1));
    pick.frequency_penalty = static_cast<float>(choose(0, 0.25));
    for (size_t id = random() % 5; id < vocab; id += 1 + random() % (vocab / 2 + 1)) {
      entries.counts.push_back({static_cast<int32_t>(id), static_cast<int32_t>(random() % 3)});
    }
  }
  for (size_t id = random() % 7; random() % 4 == 0 && id < vocab; id += 1 + random() % (vocab / 2 + 1)) {
    entries.biases.push_back({static_cast<int32_t>(id), static_cast<float>(choose(-100, 5, 0.125))});
  }
  if (random() % 3 == 0) entries.allowed = RandomMask(random, vocab);
  pick.allowed = entries.allowed;
  pick.biases = entries.biases;
  pick.counts = entries.counts;
  return pick;
}

std::string Text(const TokenPick& pick) {
  return "T " + std::to_string(pick.temperature) + " k " + std::to_string(pick.top_k) + " p " +
         std::to_string(pick.top_p) + " min_p " + std::to_string(pick.min_p) + " repeat " +
         std::to_string(pick.repeat_penalty) + " biases " + std::to_string(pick.biases.size()) + " counts " +
         std::to_string(pick.counts.size()) + " mask " + std::to_string(pick.allowed.size()) + " random " +
         std::to_string(pick.random);
}

// Picks are integers: CPU variants share their source. Log-probabilities sum floats by each variant.
class SamplingOps : public testing::TestWithParam<test::BackendUnderTest> {};
class LogProbOps : public testing::TestWithParam<test::BackendUnderTest> {};

TEST_P(SamplingOps, PicksOfMixedOptionsAreTheReferences) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  // A GPU's draws cost little; a CPU's reference sorts, so large vocabularies get fewer.
  const bool is_cuda = device.kind == DeviceKind::kCuda;
  const std::pair<size_t, int> kVocabularies[] = {{1, 40},
                                                  {5, 400},
                                                  {31, 400},
                                                  {257, 3000},
                                                  {1003, 3000},
                                                  {5000, is_cuda ? 3000 : 800},
                                                  {128256, is_cuda ? 320 : 16}};
  std::mt19937_64 random(7);
  for (const auto& [vocab, draws] : kVocabularies) {
    const std::vector<std::vector<float>> rows = Rows(vocab);
    std::vector<float> logits;
    for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
    const DeviceTensor in(*backend, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(vocab)}, logits);
    constexpr int64_t kBatch = 8;
    const auto buffer = backend->MakeLogitQueries(
        device, {static_cast<int64_t>(vocab), kBatch, 1, kBatch * 2 * static_cast<int64_t>(vocab)});
    for (int done = 0; done < draws; done += kBatch) {
      LogitQueries queries;
      std::vector<PickEntries> entries(kBatch);
      for (PickEntries& entry : entries) {
        queries.picks.push_back(RandomPick(random, vocab, entry));
        queries.picks.back().row = static_cast<int32_t>(random() % rows.size());
      }
      backend->UploadLogitQueries(*buffer, queries);
      backend->PickTokens({in.view(), 0}, *buffer, {0, kBatch});
      backend->Synchronize(device);
      for (size_t i = 0; i < queries.picks.size(); ++i) {
        const TokenPick& pick = queries.picks[i];
        ASSERT_EQ(buffer->picked()[i], Reference(rows[static_cast<size_t>(pick.row)], pick))
            << "vocabulary " << vocab << " row " << pick.row << " " << Text(pick);
      }
    }
  }
}

// 200 000 draws against the softmax, truncated and renormalised. Cells that expect fewer than 5 are pooled.
TEST_P(SamplingOps, DrawsFollowTheSoftmax) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  constexpr size_t kVocab = 300;
  constexpr int64_t kDraws = 200000;
  constexpr int64_t kBatch = 2000;
  const std::vector<float> logits = Normal(11, kVocab, 2.0f);
  const DeviceTensor in(*backend, {1, kVocab}, logits);
  const auto buffer = backend->MakeLogitQueries(device, {kVocab, kBatch, 1, 0});
  std::vector<TokenPick> kinds(5);
  kinds[0].temperature = 0.5f;
  kinds[1].temperature = 1;
  kinds[2].temperature = 2;
  kinds[3].temperature = 1;
  kinds[3].top_p = 0.9;
  kinds[4].temperature = 1;
  kinds[4].top_k = 40;
  for (const TokenPick& kind : kinds) {
    std::vector<int32_t> ranking(kVocab);
    std::iota(ranking.begin(), ranking.end(), 0);
    std::stable_sort(ranking.begin(), ranking.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    std::vector<double> p(kVocab);
    double total = 0;
    for (size_t i = 0; i < kVocab; ++i) {
      p[i] = std::exp(static_cast<double>(logits[i]) / static_cast<double>(kind.temperature));
    }
    for (const double value : p) total += value;
    double reached = 0, kept = 0;
    for (size_t i = 0; i < kVocab; ++i) {
      double& value = p[static_cast<size_t>(ranking[i])];
      const bool out = (kind.top_k > 0 && i >= static_cast<size_t>(kind.top_k)) || reached >= kind.top_p * total;
      reached += value;
      if (out) value = 0;
      kept += value;
    }
    std::vector<int64_t> seen(kVocab);
    for (int64_t done = 0; done < kDraws; done += kBatch) {
      LogitQueries queries;
      for (int64_t i = 0; i < kBatch; ++i) {
        TokenPick pick = kind;
        pick.random = RandomBits(3, 5, static_cast<uint64_t>(done + i));
        queries.picks.push_back(pick);
      }
      backend->UploadLogitQueries(*buffer, queries);
      backend->PickTokens({in.view(), 0}, *buffer, {0, kBatch});
      backend->Synchronize(device);
      for (const int32_t id : buffer->picked()) ++seen[static_cast<size_t>(id)];
    }
    double chi_square = 0, pooled_expected = 0, pooled_seen = 0;
    int cells = 0;
    const auto add = [&](double expected, double count) {
      chi_square += (count - expected) * (count - expected) / expected;
      ++cells;
    };
    for (size_t i = 0; i < kVocab; ++i) {
      const double expected = static_cast<double>(kDraws) * p[i] / kept;
      if (expected == 0) {
        EXPECT_EQ(seen[i], 0) << "a token that was cut";
      } else if (expected < 5) {
        pooled_expected += expected;
        pooled_seen += static_cast<double>(seen[i]);
      } else {
        add(expected, static_cast<double>(seen[i]));
      }
    }
    if (pooled_expected > 0) add(pooled_expected, pooled_seen);
    // Wilson and Hilferty: the cube root of chi-square over its degrees of freedom is nearly normal; 3.09 is p = 0.001.
    const double freedom = cells - 1;
    const double z = (std::cbrt(chi_square / freedom) - (1 - 2 / (9 * freedom))) / std::sqrt(2 / (9 * freedom));
    EXPECT_LT(z, 3.09) << "chi-square " << chi_square << " of " << freedom;
    EXPECT_GT(freedom, 5);
  }
}

// Two tokens of equal weight share the draws exactly in half; the first draw of the second half is the second token's.
TEST_P(SamplingOps, AThresholdOnABoundaryIsTheNextToken) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  constexpr size_t kVocab = 40000;
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  for (const size_t second : {1, 31, 1000, 8191, 8192, 16384, 39999}) {
    std::vector<float> logits(kVocab, -1000.0f);  // weight 0
    logits[0] = logits[second] = 3.0f;
    const DeviceTensor in(*backend, {1, kVocab}, logits);
    const auto buffer = backend->MakeLogitQueries(device, {kVocab, 2, 1, 0});
    LogitQueries queries;
    for (const uint64_t random : {kHalf - 1, kHalf}) {
      TokenPick pick;
      pick.row = 0;
      pick.temperature = 1;
      pick.random = random;
      queries.picks.push_back(pick);
    }
    backend->UploadLogitQueries(*buffer, queries);
    backend->PickTokens({in.view(), 0}, *buffer, {0, 2});
    backend->Synchronize(device);
    EXPECT_EQ(buffer->picked()[0], 0) << second;
    EXPECT_EQ(buffer->picked()[1], static_cast<int32_t>(second));
  }
}

TEST_P(SamplingOps, LogitsThatAreNotFiniteGiveNoToken) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  constexpr size_t kVocab = 700;
  std::vector<float> logits = Normal(8, 5 * kVocab, 1.0f);
  logits[1 * kVocab + 699] = std::numeric_limits<float>::quiet_NaN();
  logits[2 * kVocab + 3] = -std::numeric_limits<float>::quiet_NaN();
  logits[3 * kVocab + 300] = std::numeric_limits<float>::infinity();
  logits[4 * kVocab] = -std::numeric_limits<float>::infinity();
  const DeviceTensor in(*backend, {5, kVocab}, logits);
  const auto buffer = backend->MakeLogitQueries(device, {kVocab, 12, 1, 0});
  LogitQueries queries;
  for (const float temperature : {0.0f, 1.0f}) {
    for (int32_t row = 0; row < 5; ++row) {
      TokenPick pick;
      pick.row = row;
      pick.temperature = temperature;
      queries.picks.push_back(pick);
    }
  }
  backend->UploadLogitQueries(*buffer, queries);
  backend->PickTokens({in.view(), 0}, *buffer, {0, 10});
  backend->Synchronize(device);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(buffer->picked()[i] >= 0, i % 5 == 0) << i;
}

// A mask hides what is not finite, as it hides what is likely.
TEST_P(SamplingOps, AMaskLeavesWhatItAllows) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  constexpr size_t kVocab = 1003;
  std::vector<float> logits = Normal(9, kVocab, 1.0f);
  logits[7] = 50;
  logits[8] = std::numeric_limits<float>::infinity();
  const DeviceTensor in(*backend, {1, kVocab}, logits);
  const auto buffer = backend->MakeLogitQueries(device, {kVocab, 3, 1, 0});
  std::vector<uint32_t> last(static_cast<size_t>(TokenMaskWords(kVocab)));
  last.back() = 1u << (1002 % 32);
  std::vector<uint32_t> without(last.size(), ~0u);
  without[0] &= ~(3u << 7);
  LogitQueries queries;
  for (const std::vector<uint32_t>* mask : {&last, &without, &last}) {
    TokenPick pick;
    pick.row = 0;
    pick.temperature = queries.picks.empty() ? 0.0f : 1.0f;
    pick.random = ~uint64_t{0};
    pick.allowed = *mask;
    queries.picks.push_back(pick);
  }
  backend->UploadLogitQueries(*buffer, queries);
  backend->PickTokens({in.view(), 0}, *buffer, {0, 3});
  backend->Synchronize(device);
  EXPECT_EQ(buffer->picked()[0], 1002);
  EXPECT_EQ(buffer->picked()[1], Reference(logits, queries.picks[1]));
  EXPECT_EQ(buffer->picked()[2], 1002);
}

TEST_P(LogProbOps, AreTheHostsBitForBit) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  for (const size_t vocab : {size_t{1}, size_t{19}, size_t{256}, size_t{1003}, size_t{128256}}) {
    std::vector<std::vector<float>> rows = Rows(vocab);
    rows.pop_back();  // differences of its logits overflow
    std::vector<float> logits;
    for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
    const auto count = static_cast<int64_t>(rows.size());
    const DeviceTensor in(*backend, {count, static_cast<int64_t>(vocab)}, logits);
    const auto buffer = backend->MakeLogitQueries(device, {static_cast<int64_t>(vocab), count, 8 * count, 0});
    LogitQueries queries;
    constexpr int kTops[] = {0, 1, 2, 5, 20};
    for (int32_t row = 0; row < count; ++row) {
      TokenPick pick;
      pick.row = row + 100;
      pick.temperature = 1;
      pick.random = Mix64(static_cast<uint64_t>(row));
      queries.picks.push_back(pick);
      for (const int top : kTops) {
        LogProbQuery query;
        query.row = row + 100;
        query.top = top;
        if (top == 5) query.pick = row;
        if (top != 5) query.id = static_cast<int32_t>(static_cast<size_t>(row * 37 + top) % vocab);
        queries.logprobs.push_back(query);
      }
    }
    queries.logprobs.push_back({.row = -1});  // skipped
    backend->UploadLogitQueries(*buffer, queries);
    backend->PickTokens({in.view(), 100}, *buffer, {0, count});
    backend->LogProbs({in.view(), 100}, *buffer, {0, static_cast<int64_t>(queries.logprobs.size())});
    backend->Synchronize(device);
    for (size_t i = 0; i + 1 < queries.logprobs.size(); ++i) {
      const LogProbQuery& query = queries.logprobs[i];
      const std::vector<float>& row = rows[static_cast<size_t>(query.row - 100)];
      const float max = *std::max_element(row.begin(), row.end());
      float lanes[kRowLanes] = {};
      for (size_t t = 0; t < vocab; ++t) lanes[t % kRowLanes] = lanes[t % kRowLanes] + Exp(row[t] - max);
      const double log_sum = Log(static_cast<double>(FoldLanes<kRowLanes>(lanes)));
      const auto logprob = [&](int32_t id) {
        return (static_cast<double>(row[static_cast<size_t>(id)]) - static_cast<double>(max)) - log_sum;
      };
      std::vector<int32_t> ranking(vocab);
      std::iota(ranking.begin(), ranking.end(), 0);
      std::stable_sort(ranking.begin(), ranking.end(),
                       [&](int32_t a, int32_t b) { return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)]; });
      double exact_sum = 0;
      for (const float value : row) exact_sum += std::exp(static_cast<double>(value) - static_cast<double>(max));
      ASSERT_NEAR(log_sum, std::log(exact_sum), 1e-5);
      const LogProbAnswer& answer = buffer->logprobs()[i];
      const int32_t id = query.id >= 0 ? query.id : buffer->picked()[static_cast<size_t>(query.pick)];
      ASSERT_EQ(answer.id, id);
      ASSERT_EQ(answer.logprob, logprob(id)) << vocab << " " << i;
      ASSERT_EQ(answer.top, std::min<int64_t>(query.top, static_cast<int64_t>(vocab)));
      for (int32_t k = 0; k < answer.top; ++k) {
        ASSERT_EQ(answer.top_ids[k], ranking[static_cast<size_t>(k)]) << vocab << " " << i << " " << k;
        ASSERT_EQ(answer.top_logprobs[k], logprob(answer.top_ids[k])) << vocab << " " << i << " " << k;
      }
    }
  }
}

TEST_P(SamplingOps, RefusesWhatItCannotAnswer) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const auto buffer = backend->MakeLogitQueries(device, {10, 1, 1, 1});
  const auto refuses = [&](const LogitQueries& queries, std::initializer_list<std::string_view> words) {
    test::ExpectInvalid([&] { backend->UploadLogitQueries(*buffer, queries); }, words);
  };
  refuses({{{}, {}}, {}}, {"2 picks", "at most 1"});
  refuses({{}, {LogProbQuery{.id = 1}, LogProbQuery{.id = 1}}}, {"2 log-probabilities", "at most 1"});
  refuses({{}, {LogProbQuery{.id = 10}}}, {"token id 10"});
  refuses({{}, {LogProbQuery{.pick = 0}}}, {"pick 0"});
  refuses({{}, {LogProbQuery{.id = 1, .top = 21}}}, {"21 alternatives", "at most 20"});
  std::vector<LogitBias> biases = {{10, 1.0f}};
  TokenPick pick;
  pick.biases = biases;
  refuses({{pick}, {}}, {"token id 10"});
  biases = {{1, 1.0f}, {2, 1.0f}};
  pick.biases = biases;
  refuses({{pick}, {}}, {"2 biases and counts", "at most 1"});
  pick = {};
  pick.temperature = std::numeric_limits<float>::quiet_NaN();
  refuses({{pick}, {}}, {"temperature"});
  pick = {};
  pick.top_p = 0;
  refuses({{pick}, {}}, {"top_p"});
  std::vector<uint32_t> mask = {~0u << 10};  // ids that there are none of
  pick = {};
  pick.allowed = mask;
  refuses({{pick}, {}}, {"no token that is allowed"});
  mask = {1, 1};
  pick.allowed = mask;
  refuses({{pick}, {}}, {"mask of another vocabulary"});
  test::ExpectInvalid([&] { backend->MakeLogitQueries(device, {0, 1, 1, 1}); }, {"limits"});
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplingOps, testing::ValuesIn(test::OneOfEachBackend()),
                         [](const auto& backend) { return backend.param.Name(); });

INSTANTIATE_TEST_SUITE_P(Backends, LogProbOps, testing::ValuesIn(test::BackendsUnderTest()),
                         [](const auto& backend) { return backend.param.Name(); });

TEST(SamplingMath, KeysAreInTheOrderOfFloats) {
  const float values[] = {-3e38f, -1.5f, -1e-40f, 0.0f, 1e-40f, 1.0f, 1.0000001f, 3e38f};
  for (const float a : values) {
    EXPECT_EQ(KeyToFloat(OrderedKey(a)), a);
    for (const float b : values) EXPECT_EQ(a < b, OrderedKey(a) < OrderedKey(b)) << a << " " << b;
  }
  EXPECT_EQ(OrderedKey(-0.0f), OrderedKey(0.0f));
  EXPECT_GT(RankKey(1.0f, 3), RankKey(1.0f, 4));
  EXPECT_GT(RankKey(1.5f, 4), RankKey(1.0f, 3));
  EXPECT_EQ(RankId(RankKey(-2.0f, 77)), 77);
  EXPECT_EQ(RankLogit(RankKey(-2.0f, 77)), -2.0f);
}

TEST(SamplingMath, ADrawIsTheHighHalfOfTheProduct) {
  EXPECT_EQ(DrawThreshold(~uint64_t{0}, 1000), 999u);
  EXPECT_EQ(DrawThreshold(uint64_t{1} << 63, 1000), 500u);
  EXPECT_EQ(DrawThreshold(0, 1000), 0u);
  EXPECT_EQ(SampleWeight(2.0f, 2.0f, 1e-45f), uint64_t{1} << 32);
  EXPECT_EQ(SampleWeight(1.0f, 2.0f, 1e-45f), 0u);
  EXPECT_EQ(TopPWeight(1e-12, 1000), 1u);
}

}  // namespace
}  // namespace stoch
