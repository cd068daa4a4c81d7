// SPDX-License-Identifier: Apache-2.0
// Dilated attention against a definition that asks of every pair of positions, as the specification words it.
#include "kernels/dilated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/math/elementary.h"
#include "kernels/math/number_formats.h"
#include "kernels/math/reduce.h"
#include "tests/kernels/definition.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/dilated_pairs.h"
#include "tests/kernels/sc/config_with.h"
#include "tests/kernels/sequence_attention.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::HeadOf;
using test::Matrix;
using test::Pick;
using test::RowsOf;

// Shape and settings of a call.
struct Case {
  int num_heads = 2, num_kv_heads = 1, head_dim = 16, page_tokens = 16;
  int64_t first_head = 0, tokens = 40;
  int window = 0;
  ScConfig sc;
  std::string qk;  // "name=value,..." that qk has on top of sc
  std::vector<DilatedPair> pairs;
  bool made_for_pairs = true;  // KvCacheSpec::dilated

  std::string Text() const {
    return std::to_string(num_heads) + '/' + std::to_string(num_kv_heads) + " heads from " +
           std::to_string(first_head) + " of " + std::to_string(head_dim) + ", pages of " +
           std::to_string(page_tokens) + ", " + std::to_string(tokens) + " tokens, window " + std::to_string(window) +
           ", " + Describe(sc) + ", qk " + qk + ", pairs" + test::PairsText(pairs);
  }
};

Case RandomCase(std::mt19937& random) {
  Case c;
  c.num_kv_heads = Pick(random, 1, 2);
  c.num_heads = c.num_kv_heads * Pick(random, 1, 4);
  c.head_dim = std::vector<int>{8, 16, 24, 64, 72}[random() % 5];
  c.page_tokens = std::vector<int>{8, 16, 64, 80, 128}[random() % 5];
  c.first_head = Pick(random, 0, 3) * c.num_heads;
  c.tokens = Pick(random, 1, 170);
  if (random() % 4 == 0) c.window = Pick(random, 1, 100);
  c.sc.halve = random() % 2 == 0;
  if (random() % 3 == 0) c.sc.scramble_masks = 256;
  if (random() % 4 == 0) c.sc.stoc_len = 100;
  c.pairs = test::RandomPairs(random);
  return c;
}

struct Inputs : test::SequenceInputs {
  Inputs(uint64_t seed, const Case& c)
      : SequenceInputs(seed, c.tokens, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim) {}
};

// ------------------------------------------------------------------------------------------------- definition ----

float ScaleOf(const float* x, int64_t n, int q_max) {
  float largest = 1e-5f;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest / static_cast<float>(q_max);
}

int Level(float x, float scale, int q_max) {
  return static_cast<int>(
      std::clamp(std::nearbyintf(x / scale), -static_cast<float>(q_max), static_cast<float>(q_max)));
}

// One row of p v: p' takes up the scales of v; masks go by absolute position, positions that do not count add nothing.
void DefineValues(const std::vector<float>& p, const std::vector<int>& times, const Matrix& v, const ScOperator& op,
                  float* out) {
  std::vector<float> weighted(p.size(), 0.0f);
  for (size_t t = 0; t < p.size(); ++t) {
    if (times[t] > 0) weighted[t] = p[t] * ScaleOf(&v.values[t * static_cast<size_t>(v.cols)], v.cols, op.q_max);
  }
  const float scale = ScaleOf(weighted.data(), static_cast<int64_t>(weighted.size()), op.q_max);
  for (int64_t d = 0; d < v.cols; ++d) {
    int acc = 0;
    for (size_t t = 0; t < p.size(); ++t) {
      if (times[t] == 0) continue;
      const auto row = static_cast<int64_t>(t);
      const int a = Level(weighted[t], scale, op.q_max);
      const int b =
          Level(v.at(row, d), ScaleOf(&v.values[t * static_cast<size_t>(v.cols)], v.cols, op.q_max), op.q_max);
      const int count = op.count(static_cast<int>(row % op.masks), std::abs(a), std::abs(b));
      acc += (a < 0) != (b < 0) ? -count : count;
    }
    out[d] = static_cast<float>(acc) * op.gain * scale;
  }
}

// A whole sequence; angles of the rotation are 0, so q and k are what they are.
Matrix Define(const Inputs& in, const Case& c, const ScOperator& op) {
  const float inv_sqrt = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  Matrix out(c.tokens, in.q.cols);
  for (int64_t h = 0; h < c.num_heads; ++h) {
    const int64_t kv_head = h / (c.num_heads / c.num_kv_heads);
    const Matrix scores = test::DefineScProduct(HeadOf(in.q, h, c.head_dim), HeadOf(in.k, kv_head, c.head_dim), op);
    const Matrix v = HeadOf(in.v, kv_head, c.head_dim);
    for (int64_t n = 0; n < c.tokens; ++n) {
      std::vector<int> times(static_cast<size_t>(c.tokens), 0);
      for (int64_t t = 0; t <= n; ++t) {
        if (c.window > 0 && n - t >= c.window) continue;
        for (const DilatedPair& pair : c.pairs) {
          const bool own_segment = t / pair.segment == n / pair.segment;
          if (own_segment && t % pair.dilation == (c.first_head + h) % pair.dilation) ++times[static_cast<size_t>(t)];
        }
      }
      float largest = -INFINITY;
      for (int64_t t = 0; t < c.tokens; ++t) {
        if (times[static_cast<size_t>(t)] > 0) largest = std::max(largest, scores.at(n, t) * inv_sqrt);
      }
      if (largest == -INFINITY) continue;  // out is 0
      std::vector<float> p(static_cast<size_t>(c.tokens), 0.0f);
      float lanes[kRowLanes] = {};
      for (int64_t t = 0; t < c.tokens; ++t) {
        const int k = times[static_cast<size_t>(t)];
        if (k == 0) continue;
        p[static_cast<size_t>(t)] = static_cast<float>(k) * Exp(scores.at(n, t) * inv_sqrt - largest);
        lanes[t % kRowLanes] = lanes[t % kRowLanes] + p[static_cast<size_t>(t)];
      }
      const float sum = FoldLanes<kRowLanes>(lanes);
      for (float& one : p) one = one / sum;
      DefineValues(p, times, v, op, &out.at(n, h * c.head_dim));
    }
  }
  return out;
}

// ------------------------------------------------------------------------------------------------------ calls ----

// A cache of two sequences.
class Runner {
 public:
  Runner(Backend& backend, const Case& c)
      : backend_(backend),
        case_(c),
        pages_each_((c.tokens + c.page_tokens - 1) / c.page_tokens),
        cache_(backend.MakeKvCache(backend.devices().front(), Spec())),
        pass_(backend.MakePass(backend.devices().front(), {2 * c.tokens, 2, pages_each_})),
        rope_(backend, {c.tokens, c.head_dim}, Still(c)) {
    for (int32_t page = 0; page < 2 * pages_each_; ++page) {  // in turn, downwards
      pages_[page % 2].push_back(static_cast<int32_t>(2 * pages_each_ - 1 - page));
    }
  }

  struct Part {
    const Inputs* inputs;
    int64_t begin, count;
    int sequence = 0;
  };
  // The outputs of all parts' rows, in order. `dilated` off: attention as without pairs.
  Matrix Run(const std::vector<Part>& parts, bool dilated = true) {
    AttentionCall call;
    call.site = {4, "attention"};
    call.rope = rope_.view();
    call.cache = cache_.get();
    call.num_heads = case_.num_heads;
    call.window = case_.window;
    if (dilated) call.dilated = case_.pairs;
    call.first_head = case_.first_head;
    std::vector<test::SequencePart> with_pages;
    with_pages.reserve(parts.size());
    for (const Part& part : parts) with_pages.push_back({part.inputs, part.begin, part.count, pages_[part.sequence]});
    return test::RunAttentionParts(backend_, *pass_, call, with_pages);
  }

 private:
  KvCacheSpec Spec() const {
    KvCacheSpec spec;
    spec.num_layers = 1;
    spec.num_kv_heads = case_.num_kv_heads;
    spec.head_dim = case_.head_dim;
    spec.page_tokens = case_.page_tokens;
    spec.num_pages = 2 * pages_each_;
    spec.mode = AttentionMode::kPerToken;
    spec.qk = MakeScOperator(test::With(case_.sc, case_.qk));
    spec.av = MakeScOperator(case_.sc);
    if (spec.qk->config.arith == ScArith::kMxInt8) spec.key_scales = (case_.head_dim + kMxBlock - 1) / kMxBlock;
    spec.dilated = case_.made_for_pairs;
    return spec;
  }
  // Cosines 1 and sines 0: rotation by nothing.
  static std::vector<float> Still(const Case& c) {
    std::vector<float> table;
    for (int64_t i = 0; i < c.tokens * c.head_dim; ++i) table.push_back(i % c.head_dim < c.head_dim / 2 ? 1.0f : 0.0f);
    return table;
  }

  Backend& backend_;
  const Case& case_;
  int64_t pages_each_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Pass> pass_;
  DeviceTensor rope_;
  std::vector<int32_t> pages_[2];
};

// -------------------------------------------------------------------------------------------------- the kernels ----

class DilatedTest : public testing::TestWithParam<test::BackendUnderTest> {
 protected:
  // Of so many rounds, a tenth with several threads, who wait for each other on a loaded machine.
  static int Rounds(int rounds) { return GetParam().threads > 1 ? (rounds + 9) / 10 : rounds; }
  // A GPU's pages are powers of two.
  static Case Random(const Backend& backend, std::mt19937& random) {
    Case c = RandomCase(random);
    if (backend.name() == "cuda" && c.page_tokens == 80) c.page_tokens = 32;
    return c;
  }
};

TEST_P(DilatedTest, RandomShapesMeetTheDefinition) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  std::mt19937 random(11);
  for (int i = 0; i < Rounds(60); ++i) {
    const Case c = Random(*backend, random);
    const Inputs in(static_cast<uint64_t>(100 + 10 * i), c), other(static_cast<uint64_t>(105 + 10 * i), c);
    const Matrix expected = Define(in, c, *MakeScOperator(c.sc));
    Runner whole(*backend, c);
    ASSERT_TRUE(test::SameBits(whole.Run({{&in, 0, c.tokens}}).values, expected.values)) << c.Text();
    // In pieces, next to another sequence that goes on too.
    Runner pieces(*backend, c);
    for (int64_t begin = 0, count; begin < c.tokens; begin += count) {
      count = std::min<int64_t>(c.tokens - begin, random() % 3 == 0 ? 1 : Pick(random, 1, 40));
      const Matrix part = pieces.Run({{&other, begin, count, 1}, {&in, begin, count, 0}});
      ASSERT_TRUE(test::SameBits(RowsOf(part, count, count).values, RowsOf(expected, begin, count).values))
          << c.Text() << " at " << begin << " count " << count;
    }
  }
  backend->CheckFinite(backend->devices().front());
}

// One pair of dilation 1 whose segment holds the sequence: attention as it is without pairs.
TEST_P(DilatedTest, OneSegmentWithoutDilationIsDense) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  std::mt19937 random(12);
  for (int i = 0; i < Rounds(40); ++i) {
    Case c = Random(*backend, random);
    c.pairs = {{c.tokens + Pick(random, 0, 9), 1}};
    if (i % 8 == 0) c.tokens += 400;
    c.pairs[0].segment = std::max(c.pairs[0].segment, c.tokens);
    const Inputs in(static_cast<uint64_t>(300 + i), c);
    Runner runner(*backend, c);
    const Matrix dense = runner.Run({{&in, 0, c.tokens}}, false);
    EXPECT_TRUE(test::SameBits(runner.Run({{&in, 0, c.tokens}}).values, dense.values)) << c.Text();
    const Matrix last = runner.Run({{&in, c.tokens - 1, 1}});
    EXPECT_TRUE(test::SameBits(last.values, RowsOf(dense, c.tokens - 1, 1).values)) << c.Text();
    if (c.tokens < 3) continue;
    c.pairs[0].segment = c.tokens / 2;
    EXPECT_FALSE(test::SameBits(runner.Run({{&in, 0, c.tokens}}).values, dense.values)) << c.Text();
  }
}

// Formats of numbers and hardware that is not ideal in q k: without dilation the bits of per_token, and with it the same
// ones in pieces and on every backend.
TEST_P(DilatedTest, QkTakesFormatsAndHardware) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  STOCH_OPEN_OR_SKIP(scalar, (test::BackendUnderTest{"cpu", "scalar", 1}));
  std::mt19937 random(14);
  for (const char* setting :
       {"arith=fp8_e4m3", "arith=mxint8", "fault_weight=0.02", "fault_activation=0.02", "fault_product=0.01",
        "acc_bits=12", "acc_bits=9,acc_group=8", "acc_bits=14,fault_acc=0.01", "adder=apc,adder_group=4",
        "fault_weight=0.02,fault_activation=0.02,acc_bits=14,fault_acc=0.01"}) {
    for (int i = 0; i < 3; ++i) {
      Case c = Random(*backend, random);
      c.qk = setting;
      c.sc.stoc_len = 128;
      const Inputs in(static_cast<uint64_t>(700 + i), c);
      Runner runner(*backend, c);
      const Matrix whole = runner.Run({{&in, 0, c.tokens}});
      EXPECT_TRUE(test::SameBits(whole.values, Runner(*scalar, c).Run({{&in, 0, c.tokens}}).values)) << c.Text();
      for (int64_t begin = 0, count; begin < c.tokens; begin += count) {
        count = std::min<int64_t>(c.tokens - begin, Pick(random, 1, 40));
        const Matrix part = runner.Run({{&in, begin, count}});
        ASSERT_TRUE(test::SameBits(part.values, RowsOf(whole, begin, count).values)) << c.Text() << " at " << begin;
      }
      c.pairs = {{c.tokens, 1}};
      EXPECT_TRUE(
          test::SameBits(runner.Run({{&in, 0, c.tokens}}).values, runner.Run({{&in, 0, c.tokens}}, false).values))
          << c.Text();
    }
  }
}

// 10 000 perturbations on a machine with four CPU variants.
TEST_P(DilatedTest, NoFutureTokenIsAdmitted) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  std::mt19937 random(13);
  int changed = 0;
  for (int shape = 0; shape < Rounds(50); ++shape) {
    Case c = Random(*backend, random);
    c.tokens = Pick(random, 2, 30);
    c.head_dim = 8;
    const Inputs in(static_cast<uint64_t>(500 + shape), c);
    Runner runner(*backend, c);
    const Matrix before = runner.Run({{&in, 0, c.tokens}});
    for (int trial = 0; trial < 50; ++trial) {
      Inputs perturbed = in;
      const int64_t at = Pick(random, 1, static_cast<int>(c.tokens) - 1);
      for (Matrix* m : {&perturbed.q, &perturbed.k, &perturbed.v}) {
        for (int64_t col = 0; col < m->cols; ++col) {
          m->at(at, col) = static_cast<float>(Pick(random, -100, 100)) * (trial % 5 == 0 ? 1000.0f : 0.03f);
        }
      }
      const Matrix after = runner.Run({{&perturbed, 0, c.tokens}});
      ASSERT_TRUE(test::SameBits(RowsOf(after, 0, at).values, RowsOf(before, 0, at).values))
          << c.Text() << " perturbed at " << at;
      if (!test::SameBits(after.values, before.values)) ++changed;
    }
  }
  EXPECT_GT(changed, Rounds(50) * 40);  // what is perturbed is seen by itself or later, unless no head admits it
}

TEST_P(DilatedTest, HeadsOfOneKvHeadSeeTheirOwnPositions) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Case c;
  c.num_heads = 4;
  c.tokens = 70;
  c.pairs = {{64, 4}};
  Inputs in(3, c);
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t i = 0; i < c.head_dim; ++i) in.v.at(t, i) = t % 4 == 2 ? 5.0f : 0.0f;
  }
  const Matrix out = Runner(*backend, c).Run({{&in, 0, c.tokens}});
  for (int64_t n = 0; n < c.tokens; ++n) {
    for (int64_t h = 0; h < c.num_heads; ++h) {
      const bool sees = h == 2 && n % 64 >= 2;  // head 2 sees nothing before position 2 of a segment
      EXPECT_EQ(out.at(n, h * c.head_dim) != 0.0f, sees) << "position " << n << " head " << h;
    }
  }
}

TEST_P(DilatedTest, NonFiniteIsReported) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Case c;
  c.pairs = {{16, 1}};
  Inputs in(3, c);
  in.v.at(1, 2) = NAN;
  Runner(*backend, c).Run({{&in, 0, c.tokens}});
  test::ExpectInvalid([&] { backend->CheckFinite(backend->devices().front()); }, {"layer 4", "NaN or infinity"});
}

TEST_P(DilatedTest, WhatDoesNotFitIsRefused) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  Case c;
  c.pairs = {{16, 1}};
  const Inputs in(3, c);
  const auto run = [&] { Runner(*backend, c).Run({{&in, 0, c.tokens}}); };
  c.pairs = {{0, 1}};
  test::ExpectInvalid(run, {"layer 4", "segment of 0"});
  c.pairs = {{8, 0}};
  test::ExpectInvalid(run, {"dilation 0"});
  c.pairs.assign(kMaxDilatedPairs + 1, {8, 1});
  test::ExpectInvalid(run, {"pairs", "at most"});
  c.pairs = {{8, 1}};
  c.first_head = -1;
  test::ExpectInvalid(run, {"first head -1"});
  c.first_head = 0;
  c.sc.acc_bits = 12;
  test::ExpectInvalid(run, {"layer 4", "dilated attention", "av has no faults, registers and adders"});
  c.sc.acc_bits = 0;
  c.sc.arith = ScArith::kFp8E4m3;
  test::ExpectInvalid(run, {"dilated attention", "av has the arithmetic of streams alone"});
  c.sc.arith = ScArith::kSc;
  c.made_for_pairs = false;
  test::ExpectInvalid(run, {"layer 4", "dilated attention", "a cache that was not made for it"});
}

// ---------------------------------------------------------------------------------------------------- at depth ----

// The last `rows` of c.tokens rows. Those before see themselves alone, which fills the cache soon.
Matrix LastRows(Backend& backend, const Case& c, const Inputs& in, int64_t rows) {
  Case quick = c;
  quick.pairs = {{1, 1}};
  Runner runner(backend, quick);
  if (c.tokens > rows) runner.Run({{&in, 0, c.tokens - rows}});
  quick.pairs = c.pairs;
  return runner.Run({{&in, c.tokens - rows, rows}});
}

// Rows of one block, of clusters, of scores in shared memory and beyond; heads of every width.
TEST(DilatedDepth, AGpuHasTheBitsOfTheCpu) {
  STOCH_OPEN_OR_SKIP(gpu, (test::BackendUnderTest{"cuda:0", "", 0}));
  STOCH_OPEN_OR_SKIP(cpu, (test::BackendUnderTest{"cpu", "", 2}));
  const std::vector<std::vector<DilatedPair>> pairs = {
      {{2048, 1}, {8192, 4}}, {{64, 1}, {512, 3}, {32768, 16}}, {{32768, 2}}, {{300, 7}, {4096, 7}}, {{32768, 1}}};
  uint64_t seed = 900;
  for (const int64_t tokens : {300, 700, 5000, 9000, 20000}) {
    for (const std::vector<DilatedPair>& some : pairs) {
      Case c;
      c.tokens = tokens;
      c.pairs = some;
      c.page_tokens = 64;
      c.num_kv_heads = 1;
      c.num_heads = 1 + static_cast<int>(seed % 3);
      c.head_dim = std::vector<int>{64, 128, 24, 256}[seed % 4];
      c.first_head = static_cast<int64_t>(seed % 5);
      if (seed % 3 == 1) c.sc.scramble_masks = 256;
      if (seed % 5 == 2) c.sc.gate = ScGate::kXnor;  // another table, where code 0 counts: so without a window
      c.window = seed % 4 == 1 && c.sc.gate != ScGate::kXnor ? 3000 : 0;
      c.sc.halve = c.sc.gate != ScGate::kXnor && seed % 2 == 0;
      const Inputs in(seed++, c);
      for (const int64_t rows : {1, 5, 40}) {
        ASSERT_TRUE(test::SameBits(LastRows(*gpu, c, in, rows).values, LastRows(*cpu, c, in, rows).values))
            << c.Text() << ", the last " << rows;
      }
    }
  }
  gpu->CheckFinite(gpu->devices().front());
}

INSTANTIATE_TEST_SUITE_P(Backends, DilatedTest, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch
