// SPDX-License-Identifier: Apache-2.0
// Experts with lengths of rows, protected channels and smoothing of their own, against one product of each slot.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sc/sc_lengths.h"
#include "tests/kernels/definition.h"
#include "tests/kernels/device_tensor.h"
#include "tests/support/backends_under_test.h"

namespace stoch::test {
namespace {

constexpr int64_t kExperts = 5, kTokens = 9, kTopK = 2, kCols = 300, kOut = 40, kSlots = kTokens * kTopK;

ScConfig Config() {
  ScConfig config;
  config.halve = true;
  config.stoc_len = 128;
  config.chunk_d = 128;
  return config;
}

struct Case {
  const char* name;
  ScLengthRule rule;
  bool protects = false;  // expert e: channels e, 7 + e and 250, expert 3 none
  bool smooths = false;   // factors of each expert's own
};

std::vector<Case> Cases() {
  ScLengthRule rows;
  rows.levels = {128, 64, 24};
  rows.thresholds = {0.6f, 0.3f};
  rows.lo = 2.0f;
  rows.hi = 16.0f;
  ScLengthRule chunks = rows;
  chunks.scope = ScLengthScope::kChunk;
  chunks.levels = {16, 48, 128};
  chunks.thresholds = {0.3f, 0.6f};
  ScLengthRule bands = rows;
  bands.chunk_bands = {0, 1, 0};
  bands.ladders = {{128, 96, 64}, {64, 32, 0}};
  ScLengthRule fractions = rows;
  fractions.scope = ScLengthScope::kFractions;
  fractions.normalise = ScNormalise::kCall;
  fractions.fractions = {0.28, 0.39, 0.33};  // 5 and 7 of 18: they part the two slots of a token
  const auto by_call = [](ScLengthRule rule) {
    rule.normalise = ScNormalise::kCall;
    return rule;
  };
  return {{"rows", rows},
          {"rows, protected", rows, true},
          {"rows, smooth", rows, false, true},
          {"chunks, protected and smooth", chunks, true, true},
          {"bands", bands},
          {"rows of a call", by_call(rows)},
          {"rows of a call, protected", by_call(rows), true},
          {"chunks of a call, protected", by_call(chunks), true},
          {"bands of a call, protected and smooth", by_call(bands), true, true},
          {"fractions", fractions}};
}

// Everything that observers see.
class Seen final : public OpObserver {
 public:
  void OnLengths(const ScLengthRecord& record) override {
    if (record.unit < 0) {
      ++calls;
      EXPECT_EQ(record.rows, kTokens);
      EXPECT_TRUE(record.lengths.empty());
      return;
    }
    EXPECT_EQ(static_cast<int64_t>(record.lengths.size()), record.rows * record.lengths_per_row);
    for (int64_t i = 0; i < record.rows; ++i) {
      const auto first = record.lengths.begin() + static_cast<std::ptrdiff_t>(i * record.lengths_per_row);
      const std::vector<int> own(first, first + static_cast<std::ptrdiff_t>(record.lengths_per_row));
      const bool is_new = lengths.emplace(std::pair(record.unit, record.first_position + i), own).second;
      EXPECT_TRUE(is_new) << "expert " << record.unit << ", token " << record.first_position + i;
    }
  }
  int calls = 0;
  std::map<std::pair<int64_t, int64_t>, std::vector<int>> lengths;  // by (expert, token)
};

class Experts {
 public:
  Experts(Backend& backend, const Case& c, bool shared) : backend_(backend), rule_(c.rule), shared_(shared) {
    const Device device = backend.devices().front();
    op_ = MakeScOperator(Config());
    const auto rule = std::make_shared<const ScLengthRule>(c.rule);
    const auto by_length = MakeScOperators(Config(), rule->Lengths());
    std::vector<std::unique_ptr<LinearWeight>> weights;
    for (int64_t e = 0; e < kExperts; ++e) {
      matrices_.push_back(RandomMatrix(static_cast<uint64_t>(30 + e), kOut, kCols));
      auto extras = std::make_shared<ScExtras>();
      extras->op = "gate_proj";
      extras->lengths = rule;
      extras->by_length = by_length;
      extras->site.unit = e;
      if (c.protects && e != 3) {
        extras->protected_channels = {static_cast<int32_t>(e), static_cast<int32_t>(7 + e), 250};
        ScConfig own = Config();
        own.stoc_len = 100;
        extras->protected_op = MakeScOperator(own);
      }
      for (int64_t d = 0; d < kCols && c.smooths; ++d) {
        extras->smooth.push_back(0.5f + 0.001f * static_cast<float>(d * (e + 1)));
      }
      extras_.push_back(extras);
      WeightSource source;
      source.name = "expert";
      source.rows = kOut;
      source.cols = kCols;
      source.host = matrices_.back().values.data();
      weights.push_back(backend.MakeLinear(device, {&source, 1}, {Precision::kSc, op_, extras}));
    }
    experts_ = backend.MakeExperts(std::move(weights));
    x_ = RandomMatrix(7, shared ? kTokens : kSlots, kCols);
    for (int64_t row = 0; row < x_.rows; ++row) {  // in no order
      const float size = 1.0f + 0.2f * static_cast<float>(row * 5 % x_.rows);
      for (int64_t d = 0; d < kCols; ++d) x_.at(row, d) = x_.at(row, d) * size;
    }
    for (int64_t s = 0; s < kSlots; ++s) chosen_.push_back(static_cast<int32_t>(s / 2 * 3 + s % 2 * 2) % kExperts);
    for (int32_t& e : chosen_) e = e == 4 ? 1 : e;  // nobody takes expert 4
    for (int64_t s = 0; s < kSlots; s += 2) {
      if (chosen_[static_cast<size_t>(s)] == chosen_[static_cast<size_t>(s + 1)]) chosen_[static_cast<size_t>(s)] = 3;
    }
  }

  std::vector<float> Run() { return RunThrice("").front(); }

  // Outputs of three runs, in graphs of that key where it is not empty; others are chosen in the last.
  std::vector<std::vector<float>> RunThrice(const std::string& key) {
    const Device device = backend_.devices().front();
    const DeviceTensor x(backend_, {x_.rows, kCols}, x_.values);
    const DeviceTensor out(backend_, {kSlots, kOut}, std::vector<float>(static_cast<size_t>(kSlots * kOut), 3.0f));
    const Buffer ids = backend_.Allocate(device, kSlots * 4);
    ExpertLinearCall call;
    call.site = {0, "gate_up_proj"};
    call.x = x.view();
    call.chosen = MakeView(ids.data(), DType::kI32, device, kTokens, kTopK);
    call.weights = {experts_.get()};
    call.outs = {out.view()};
    std::vector<std::vector<float>> all;
    for (int run = 0; run < (key.empty() ? 1 : 3); ++run) {
      if (run == 2) ChooseOthers();
      backend_.CopyFromHost(call.chosen, chosen_.data());
      backend_.RunGraph(device, key, [&] { backend_.ExpertLinear(call); });
      backend_.CheckFinite(device);
      all.push_back(out.Read());
    }
    return all;
  }

  // Every slot takes the expert before its own.
  void ChooseOthers() {
    for (int32_t& e : chosen_) e = (e + static_cast<int32_t>(kExperts) - 1) % static_cast<int32_t>(kExperts);
  }

  // One product a slot, at the lengths that its row has among those of the call.
  std::vector<float> Defined() const {
    std::vector<float> all;
    for (int64_t s = 0; s < kSlots; ++s) {
      const auto e = static_cast<size_t>(chosen_[static_cast<size_t>(s)]);
      const std::vector<float> row(Row(s), Row(s) + kCols);
      const DeviceTensor x(backend_, {1, kCols}, row);
      const DeviceTensor w(backend_, {kOut, kCols}, matrices_[e].values);
      const DeviceTensor y(backend_, {1, kOut}, std::vector<float>(kOut));
      backend_.ScMixedMatmul(x.view(), w.view(), op_, *extras_[e], LengthsOf(s), y.view());
      const std::vector<float> values = y.Read();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  // Lengths of a slot, by the text of docs/research.md.
  std::vector<int> LengthsOf(int64_t slot) const {
    const std::vector<std::vector<float>> of_slot = Metrics(slot);
    float lo = rule_.lo, hi = rule_.hi;
    if (rule_.normalise == ScNormalise::kCall) {
      lo = INFINITY;
      hi = -INFINITY;
      for (int64_t s = 0; s < kSlots; ++s) {
        for (const std::vector<float>& one : Metrics(s)) {
          lo = std::min(lo, one[0]);
          hi = std::max(hi, one[0]);
        }
      }
    }
    constexpr size_t chunks = 3;
    std::vector<int> lengths;
    for (size_t c = 0; c < (rule_.by_chunk() ? chunks : 1); ++c) {
      const float u = (of_slot[of_slot.size() > 1 ? c : 0][0] - lo) / (hi - lo);
      size_t level = 0;
      if (rule_.scope == ScLengthScope::kChunk) {
        for (const float t : rule_.thresholds) level += t < u ? 1 : 0;
      } else if (rule_.scope == ScLengthScope::kFractions) {
        level = FractionLevel(slot);
      } else {
        while (level < rule_.thresholds.size() && u < rule_.thresholds[level]) ++level;
      }
      lengths.push_back(rule_.ladders.empty() ? rule_.levels[level]
                                              : rule_.ladders[static_cast<size_t>(rule_.chunk_bands[c])][level]);
    }
    return lengths;
  }
  const std::vector<int32_t>& chosen() const { return chosen_; }

 private:
  const float* Row(int64_t slot) const {
    return &x_.values[static_cast<size_t>((shared_ ? slot / kTopK : slot) * kCols)];
  }
  // That its row is dispatched by.
  std::vector<int64_t> Channels(int64_t slot) const {
    std::vector<int64_t> channels;
    const auto& own = extras_[static_cast<size_t>(chosen_[static_cast<size_t>(slot)])]->protected_channels;
    for (int64_t d = 0; d < kCols; ++d) {
      if (std::find(own.begin(), own.end(), d) == own.end()) channels.push_back(d);
    }
    return channels;
  }
  // amax of the row, or of each chunk.
  std::vector<std::vector<float>> Metrics(int64_t slot) const {
    const std::vector<int64_t> channels = Channels(slot);
    const size_t width = rule_.scope == ScLengthScope::kChunk ? 128 : channels.size();
    std::vector<std::vector<float>> metrics;
    for (size_t begin = 0; begin < channels.size(); begin += width) {
      float largest = 0;
      for (size_t i = begin; i < std::min(begin + width, channels.size()); ++i) {
        largest = std::max(largest, std::abs(Row(slot)[channels[i]]));
      }
      metrics.push_back({largest});
    }
    return metrics;
  }
  // Pairs in order of (metric falling, expert, token).
  size_t FractionLevel(int64_t slot) const {
    std::vector<int64_t> order(kSlots);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return chosen_[static_cast<size_t>(a)] < chosen_[static_cast<size_t>(b)];
    });
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return Metrics(a)[0][0] > Metrics(b)[0][0]; });
    const auto at = std::find(order.begin(), order.end(), slot) - order.begin();
    return at < 5 ? 0 : at < 12 ? 1 : 2;
  }

  Backend& backend_;
  ScLengthRule rule_;
  bool shared_;
  ScOperatorPtr op_;
  std::vector<Matrix> matrices_;
  std::vector<ScExtrasPtr> extras_;
  std::unique_ptr<ExpertWeights> experts_;
  Matrix x_;
  std::vector<int32_t> chosen_;
};

class MixedExperts : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(MixedExperts, AreProductsOfTheirSlots) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const Case& c : Cases()) {
    for (const bool shared : {true, false}) {
      SCOPED_TRACE(std::string(c.name) + (shared ? ", slots share rows" : ""));
      Experts experts(*backend, c, shared);
      std::set<std::vector<int>> different;
      for (int64_t s = 0; s < kSlots; ++s) different.insert(experts.LengthsOf(s));
      EXPECT_GT(different.size(), 1u);
      EXPECT_TRUE(SameBits(experts.Run(), experts.Defined()));
    }
  }
}

// The host groups slots by what was chosen, so nothing of a call may be replayed for another choice.
TEST_P(MixedExperts, FollowTheChoiceUnderTheKeyOfAGraph) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    Experts experts(*backend, c, true);
    const std::vector<float> defined = experts.Defined();
    const std::vector<std::vector<float>> runs = experts.RunThrice(std::string("graph of ") + c.name);
    EXPECT_TRUE(SameBits(runs[0], defined));
    EXPECT_TRUE(SameBits(runs[1], defined));
    EXPECT_TRUE(SameBits(runs[2], experts.Defined()));  // of the last choice
    EXPECT_FALSE(SameBits(runs[2], defined));
  }
}

TEST_P(MixedExperts, ShowTheLengthsOfEveryPair) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    Experts experts(*backend, c, true);
    Seen seen;
    ASSERT_TRUE(backend->ObserveLengths(&seen));
    const std::vector<float> observed = experts.Run();
    backend->ObserveLengths(nullptr);
    EXPECT_TRUE(SameBits(observed, experts.Run()));
    EXPECT_EQ(seen.calls, 1);
    EXPECT_EQ(seen.lengths.size(), static_cast<size_t>(kSlots));
    for (int64_t s = 0; s < kSlots; ++s) {
      const std::pair<int64_t, int64_t> pair{experts.chosen()[static_cast<size_t>(s)], s / kTopK};
      EXPECT_EQ(seen.lengths[pair], experts.LengthsOf(s)) << "expert " << pair.first << ", token " << pair.second;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MixedExperts,
                         testing::Values(BackendUnderTest{"cpu", "scalar", 1}, BackendUnderTest{"cpu", "", 2},
                                         BackendUnderTest{"cuda:0", "", 0}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch::test
