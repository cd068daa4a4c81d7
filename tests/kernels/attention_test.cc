// SPDX-License-Identifier: Apache-2.0
// Attention in its four modes against its definition, and what each mode promises about windows and neighbours.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/math/gated.h"
#include "tests/kernels/definition.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/sequence_attention.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::Matrix;
using test::RowsOf;

struct Shape {
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int page_tokens;
};

ScOperatorPtr Operator(AttentionMode mode, bool halve, const char* gate = "enabled") {
  ScConfig config;
  config.halve = halve;
  SetScParameter(config, "gate", gate);
  if (mode == AttentionMode::kPerHead) config.granularity = ScGranularity::kPerHead;
  return MakeScOperator(config);
}

KvCacheSpec Spec(const Shape& shape, AttentionMode mode, bool halve) {
  KvCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = shape.num_kv_heads;
  spec.head_dim = shape.head_dim;
  spec.page_tokens = shape.page_tokens;
  spec.num_pages = 9;
  spec.mode = mode;
  if (mode != AttentionMode::kExact) {
    spec.qk = Operator(mode, halve);
    spec.av = Operator(mode, halve);
  }
  return spec;
}

// Counts that no gate gives, 0 where the activation is 0, with two masks.
ScOperatorPtr TableOperator(AttentionMode mode) {
  auto counts = std::make_shared<CountTable>();
  counts->masks = 2;
  counts->levels = 128;
  for (int i = 0; i < 2 * 128 * 128; ++i) {
    const int mask = i >> 14, a = i >> 7 & 127, b = i & 127;
    counts->entries.push_back(a == 0 || b == 0 ? 0 : a * b / 126 + ((a ^ b) & 7) + mask);
  }
  ScConfig config;
  config.gate = ScGate::kCounts;
  config.stoc_len = 128;
  config.counts = "counts";
  config.count_table = CountTablePtr(std::move(counts));
  if (mode == AttentionMode::kPerHead) config.granularity = ScGranularity::kPerHead;
  return MakeScOperator(config);
}

// Angles are not what is tested: any cosines and sines do.
Matrix RopeTable(int64_t positions, int64_t head_dim) {
  Matrix table(positions, head_dim);
  for (int64_t t = 0; t < positions; ++t) {
    for (int64_t i = 0; i < head_dim / 2; ++i) {
      const double angle =
          static_cast<double>(t) / std::pow(50.0, static_cast<double>(2 * i) / static_cast<double>(head_dim));
      table.at(t, i) = static_cast<float>(std::cos(angle));
      table.at(t, head_dim / 2 + i) = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

struct Inputs : test::SequenceInputs {
  Inputs(uint64_t seed, const Shape& shape, int64_t tokens)
      : SequenceInputs(seed, tokens, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim) {}
};

// Columns of one head, rotated by row positions where `rope` is given.
Matrix Head(const Matrix& m, int64_t head, int64_t head_dim, const Matrix* rope) {
  Matrix result = test::HeadOf(m, head, head_dim);
  for (int64_t t = 0; t < m.rows; ++t) {
    for (int64_t i = 0; rope != nullptr && i < head_dim / 2; ++i) {
      const float x1 = result.at(t, i);
      const float x2 = result.at(t, i + head_dim / 2);
      const float cosine = rope->at(t, i);
      const float sine = rope->at(t, i + head_dim / 2);
      result.at(t, i) = x1 * cosine - x2 * sine;
      result.at(t, i + head_dim / 2) = x2 * cosine + x1 * sine;
    }
  }
  return result;
}

// One row of per_token's second product: probabilities take up the scales of v, v its own.
Matrix DefinePerTokenOutput(const Matrix& p, const Matrix& v, const ScOperator& op) {
  const float q = static_cast<float>(op.q_max);
  const auto scale_of = [&](const Matrix& m, int64_t row) {
    float largest = 1e-5f;
    for (int64_t i = 0; i < m.cols; ++i) largest = std::max(largest, std::fabs(m.at(row, i)));
    return largest / q;
  };
  const auto level = [&](float x, float scale) {
    return static_cast<int>(std::clamp(std::nearbyintf(x / scale), -q, q));
  };
  Matrix out(p.rows, v.cols);
  for (int64_t n = 0; n < p.rows; ++n) {
    Matrix weighted(1, p.cols);
    for (int64_t t = 0; t < p.cols; ++t) weighted.at(0, t) = p.at(n, t) * scale_of(v, t);
    const float scale = scale_of(weighted, 0);
    for (int64_t d = 0; d < v.cols; ++d) {
      int acc = 0;
      for (int64_t t = 0; t < p.cols; ++t) {
        const int a = level(weighted.at(0, t), scale);
        const int b = level(v.at(t, d), scale_of(v, t));
        const int count = op.count(static_cast<int>(t % op.masks), std::abs(a), std::abs(b));
        acc += (a < 0) != (b < 0) ? -count : count;
      }
      out.at(n, d) = static_cast<float>(acc) * op.gain * scale;
    }
  }
  return out;
}

// A whole sequence from position 0 in one pass.
Matrix Define(const Inputs& in, const Shape& shape, const KvCacheSpec& spec, int64_t window = 0, float cap = 0) {
  const int64_t tokens = in.q.rows;
  const Matrix rope = RopeTable(tokens, shape.head_dim);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  Matrix out(tokens, in.q.cols);
  for (int64_t h = 0; h < shape.num_heads; ++h) {
    const int64_t kv_head = h / (shape.num_heads / shape.num_kv_heads);
    const Matrix q = Head(in.q, h, shape.head_dim, &rope);
    const Matrix k = Head(in.k, kv_head, shape.head_dim, &rope);
    const Matrix v = Head(in.v, kv_head, shape.head_dim, nullptr);
    const bool exact = spec.mode == AttentionMode::kExact;
    Matrix p = exact ? test::DefineExactProduct(q, k) : test::DefineScProduct(q, k, *spec.qk);
    for (float& score : p.values) score = cap > 0 ? SoftCap(score * scale, cap) : score * scale;
    for (int64_t n = 0; n < tokens; ++n) {
      for (int64_t t = 0; window > 0 && t <= n - window; ++t) p.at(n, t) = -INFINITY;
      test::DefineSoftmax(p.values.data() + n * tokens, n + 1, tokens);
    }
    Matrix y;
    if (exact) {
      // Lanes go by position, and masked positions are not visited.
      y = test::DefineExactProduct(p, test::Transposed(v));
    } else if (spec.mode == AttentionMode::kPerToken) {
      y = DefinePerTokenOutput(p, v, *spec.av);
    } else {
      y = test::DefineScProduct(p, test::Transposed(v), *spec.av);
    }
    for (int64_t n = 0; n < tokens; ++n) {
      for (int64_t i = 0; i < shape.head_dim; ++i) out.at(n, h * shape.head_dim + i) = y.at(n, i);
    }
  }
  return out;
}

// A cache and what it takes to call the op on parts of sequences.
class Runner {
 public:
  Runner(Backend& backend, const Shape& shape, const KvCacheSpec& spec, int window = 0, float cap = 0)
      : backend_(backend),
        shape_(shape),
        window_(window),
        cap_(cap),
        cache_(backend.MakeKvCache(backend.devices().front(), spec)),
        pass_(backend.MakePass(backend.devices().front(), {200, 4, 9})),
        rope_(backend, {150, shape.head_dim}, RopeTable(150, shape.head_dim).values) {
    EXPECT_EQ(cache_->bytes(), backend.KvCacheBytes(spec));
  }

  // The outputs of all parts' rows, in order; behind a norm of heads where one is given, apart or in the op.
  Matrix Run(const std::vector<test::SequencePart>& parts, const NormHeadsCall* norm = nullptr, bool apart = false) {
    AttentionCall call;
    call.norm = norm;
    call.site = {4, "attention"};
    call.rope = rope_.view();
    call.cache = cache_.get();
    call.cache_layer = 1;
    call.num_heads = shape_.num_heads;
    call.window = window_;
    call.score_cap = cap_;
    return test::RunAttentionParts(backend_, *pass_, call, parts, apart);
  }

 private:
  Backend& backend_;
  Shape shape_;
  int window_;
  float cap_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Pass> pass_;
  DeviceTensor rope_;
};

constexpr Shape kShapes[] = {{4, 2, 16, 16}, {3, 3, 8, 64}, {4, 1, 64, 64}, {4, 2, 80, 32}};
constexpr AttentionMode kModes[] = {AttentionMode::kExact, AttentionMode::kPerToken, AttentionMode::kPerHead,
                                    AttentionMode::kPerRow};
const std::vector<int32_t> kPages = {7, 2, 5, 0, 8, 1};
const std::vector<int32_t> kOtherPages = {3, 6, 4};

class AttentionTest : public testing::TestWithParam<test::BackendUnderTest> {};

TEST_P(AttentionTest, EveryModeMeetsItsDefinition) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const Shape& shape : kShapes) {
    for (const AttentionMode mode : kModes) {
      // Halved streams are scrambled, so that masks show; full ones hold counts of 256.
      for (const auto& [tokens, halve] : {std::pair<int64_t, bool>{1, false}, {5, true}, {34, false}, {70, true}}) {
        const KvCacheSpec spec = Spec(shape, mode, halve);
        const Inputs in(static_cast<uint64_t>(tokens), shape, tokens);
        Runner runner(*backend, shape, spec);
        const Matrix actual = runner.Run({{&in, 0, tokens, kPages}});
        ASSERT_TRUE(test::SameBits(actual.values, Define(in, shape, spec).values))
            << "mode " << static_cast<int>(mode) << " head_dim " << shape.head_dim << " tokens " << tokens;
      }
    }
  }
  backend->CheckFinite(backend->devices().front());
}

TEST_P(AttentionTest, ChunksAndTokensGiveTheWholePrompt) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kTokens = 75;
  for (const Shape& shape : kShapes) {
    for (const AttentionMode mode : {AttentionMode::kExact, AttentionMode::kPerToken}) {
      const KvCacheSpec spec = Spec(shape, mode, true);
      const Inputs in(3, shape, kTokens);
      const Matrix whole = Runner(*backend, shape, spec).Run({{&in, 0, kTokens, kPages}});
      for (const int64_t step : {1, 7, 64}) {
        Runner runner(*backend, shape, spec);
        for (int64_t begin = 0; begin < kTokens; begin += step) {
          const int64_t count = std::min(step, kTokens - begin);
          const Matrix part = runner.Run({{&in, begin, count, kPages}});
          ASSERT_TRUE(test::SameBits(part.values, RowsOf(whole, begin, count).values))
              << "mode " << static_cast<int>(mode) << " step " << step << " at " << begin;
        }
      }
    }
  }
}

// A norm of heads as part of the op gives what it gives in front of it, for prompts and for rows that append themselves.
TEST_P(AttentionTest, HeadsMayBeNormedInTheOp) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const Shape& shape :
       {Shape{4, 2, 16, 16}, Shape{4, 1, 64, 64}, Shape{4, 2, 128, 32}, Shape{2, 1, 192, 32}, Shape{2, 1, 256, 32}}) {
    const DeviceTensor q_weight(*backend, {shape.head_dim}, test::RandomMatrix(5, 1, shape.head_dim).values);
    const DeviceTensor k_weight(*backend, {shape.head_dim}, test::RandomMatrix(6, 1, shape.head_dim).values);
    NormHeadsCall norm;
    norm.site = {4, "qkv_proj"};
    norm.head_dim = shape.head_dim;
    norm.eps = 1e-6f;
    norm.q_weight = q_weight.view();
    norm.k_weight = k_weight.view();
    for (const AttentionMode mode : kModes) {
      const KvCacheSpec spec = Spec(shape, mode, true);
      const Inputs in(8, shape, 60), other(9, shape, 20);
      Runner apart(*backend, shape, spec), within(*backend, shape, spec), without(*backend, shape, spec);
      for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 40}, {40, 1}, {41, 3}, {44, 1}, {45, 15}}) {
        const std::vector<test::SequencePart> parts = {{&in, begin, count, kPages}};
        const Matrix expected = apart.Run(parts, &norm, true);
        ASSERT_TRUE(test::SameBits(expected.values, within.Run(parts, &norm).values))
            << "mode " << static_cast<int>(mode) << " head_dim " << shape.head_dim << " at " << begin;
        EXPECT_FALSE(test::SameBits(expected.values, without.Run(parts).values));
      }
      const std::vector<test::SequencePart> two = {{&other, 0, 2, kOtherPages}, {&in, 20, 1, kPages}};
      ASSERT_TRUE(test::SameBits(apart.Run(two, &norm, true).values, within.Run(two, &norm).values));
    }
  }
}

// All rows of a sequence behind a window against the definition: in one pass, and where it may be cut in several.
void ExpectWindow(Backend& backend, const Shape& shape, const KvCacheSpec& spec, const Inputs& in, int window) {
  const int64_t tokens = in.q.rows;
  const Matrix expected = Define(in, shape, spec, window);
  std::vector<int64_t> steps = {tokens};
  if (spec.mode == AttentionMode::kExact || spec.mode == AttentionMode::kPerToken) steps = {tokens, 1, 7};
  for (const int64_t step : steps) {
    Runner runner(backend, shape, spec, window);
    for (int64_t begin = 0; begin < tokens; begin += step) {
      const int64_t count = std::min(step, tokens - begin);
      const Matrix part = runner.Run({{&in, begin, count, kPages}});
      ASSERT_TRUE(test::SameBits(part.values, RowsOf(expected, begin, count).values))
          << "mode " << static_cast<int>(spec.mode) << " head_dim " << shape.head_dim << " window " << window
          << " step " << step << " at " << begin;
    }
  }
}

// In one pass, and where it may be cut in several; windows within a page, over pages, and as long as the sequence.
TEST_P(AttentionTest, WindowsHideOlderPositions) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kTokens = 75;
  for (const Shape& shape : kShapes) {
    const Inputs in(3, shape, kTokens);
    for (const AttentionMode mode : kModes) {
      const KvCacheSpec spec = Spec(shape, mode, true);
      for (const int window : {1, 7, 16, 40, 75, 200}) ExpectWindow(*backend, shape, spec, in, window);
    }
  }
}

// Tables whose products with 0 are 0, on GPUs by the plain kernels.
TEST_P(AttentionTest, WindowsHideOlderPositionsFromTables) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const Shape& shape : {kShapes[0], kShapes[3]}) {
    const Inputs in(3, shape, 75);
    for (const AttentionMode mode : {AttentionMode::kPerToken, AttentionMode::kPerHead, AttentionMode::kPerRow}) {
      KvCacheSpec spec = Spec(shape, mode, true);
      spec.qk = spec.av = TableOperator(mode);
      for (const int window : {7, 40, 200}) ExpectWindow(*backend, shape, spec, in, window);
    }
  }
}

// With and without a window, whose hidden positions stay hidden; a small cap makes a softmax flatter.
TEST_P(AttentionTest, CapsBoundScores) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kTokens = 70;
  for (const Shape& shape : {Shape{4, 2, 16, 16}, Shape{2, 1, 256, 64}}) {
    const Inputs in(3, shape, kTokens);
    for (const AttentionMode mode : kModes) {
      KvCacheSpec spec = Spec(shape, mode, true);
      test::ExpectInvalid(
          [&] {
            Runner(*backend, shape, spec, 0, 2.0f).Run({{&in, 0, 5, kPages}});
          },
          {"layer 4", "a cap of scores"});
      spec.smooths_qk = true;
      const Matrix plain = Define(in, shape, spec);
      for (const auto& [window, cap] : {std::pair<int, float>{0, 0.05f}, {0, 3.0f}, {9, 0.25f}}) {
        const Matrix expected = Define(in, shape, spec, window, cap);
        EXPECT_FALSE(test::SameBits(expected.values, plain.values));
        const bool is_cut = mode == AttentionMode::kExact || mode == AttentionMode::kPerToken;
        const int64_t step = is_cut ? 33 : kTokens;
        Runner runner(*backend, shape, spec, window, cap);
        for (int64_t begin = 0; begin < kTokens; begin += step) {
          const int64_t count = std::min(step, kTokens - begin);
          const Matrix part = runner.Run({{&in, begin, count, kPages}});
          ASSERT_TRUE(test::SameBits(part.values, RowsOf(expected, begin, count).values))
              << "mode " << static_cast<int>(mode) << " head_dim " << shape.head_dim << " window " << window << " cap "
              << cap << " at " << begin;
        }
      }
    }
  }
}

TEST_P(AttentionTest, SequencesDoNotSeeEachOther) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Shape shape{4, 2, 16, 16};
  const Inputs first(5, shape, 20);
  const Inputs second(9, shape, 33);
  for (const AttentionMode mode : kModes) {
    const KvCacheSpec spec = Spec(shape, mode, true);
    const Matrix alone_first = Runner(*backend, shape, spec).Run({{&first, 0, 20, kPages}});
    const Matrix alone_second = Runner(*backend, shape, spec).Run({{&second, 0, 33, kOtherPages}});
    const Matrix both = Runner(*backend, shape, spec).Run({{&first, 0, 20, kPages}, {&second, 0, 33, kOtherPages}});
    EXPECT_TRUE(test::SameBits(RowsOf(both, 0, 20).values, alone_first.values)) << static_cast<int>(mode);
    EXPECT_TRUE(test::SameBits(RowsOf(both, 20, 33).values, alone_second.values)) << static_cast<int>(mode);
  }
}

// A later pass of the published modes takes the whole window, cached positions included, into its scales.
TEST_P(AttentionTest, WindowModesContinueFromTheCache) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Shape shape{2, 1, 16, 16};
  Inputs in(13, shape, 40);
  for (int64_t i = 0; i < in.v.cols; ++i) in.v.at(35, i) = 50.0f;  // a later position sets every scale of v
  BackendOptions options;
  options.cpu_variant = "scalar";
  const auto reference = OpenBackend("cpu", options, nullptr);
  for (const AttentionMode mode : {AttentionMode::kPerHead, AttentionMode::kPerRow}) {
    const KvCacheSpec spec = Spec(shape, mode, true);
    Runner expected(*reference, shape, spec);
    Runner actual(*backend, shape, spec);
    Runner whole(*backend, shape, spec);
    const Matrix start = actual.Run({{&in, 0, 30, kPages}});
    EXPECT_TRUE(test::SameBits(start.values, expected.Run({{&in, 0, 30, kPages}}).values));
    EXPECT_TRUE(
        test::SameBits(actual.Run({{&in, 30, 10, kPages}}).values, expected.Run({{&in, 30, 10, kPages}}).values));
    EXPECT_FALSE(test::SameBits(start.values, RowsOf(whole.Run({{&in, 0, 40, kPages}}), 0, 30).values));
  }
}

TEST_P(AttentionTest, NonFiniteIsReportedWithItsLayer) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const Shape shape{4, 2, 16, 16};
  for (const AttentionMode mode : kModes) {
    Inputs in(5, shape, 3);
    in.v.at(1, 2) = NAN;
    Runner(*backend, shape, Spec(shape, mode, true)).Run({{&in, 0, 3, kPages}});
    test::ExpectInvalid([&] { backend->CheckFinite(device); }, {"layer 4", "attention", "NaN or infinity"});
  }
}

TEST_P(AttentionTest, WhatDoesNotFitIsRefused) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const Shape shape{4, 2, 16, 16};
  const Inputs in(5, shape, 40);
  Runner runner(*backend, shape, Spec(shape, AttentionMode::kExact, false));
  test::ExpectInvalid([&] { runner.Run({{&in, 0, 40, {1, 2}}}); }, {"pages"});
  KvCacheSpec spec = Spec(shape, AttentionMode::kPerHead, false);
  spec.av = Operator(AttentionMode::kPerRow, false);
  test::ExpectInvalid([&] { backend->MakeKvCache(device, spec); }, {"av", "granularity"});
  spec = Spec(shape, AttentionMode::kPerToken, false);
  spec.qk = nullptr;
  test::ExpectInvalid([&] { backend->MakeKvCache(device, spec); }, {"qk"});
  ScConfig unipolar;
  unipolar.mode = ScMode::kUnipolar;
  spec.qk = MakeScOperator(unipolar);
  test::ExpectInvalid([&] { backend->MakeKvCache(device, spec); }, {"qk", "unipolar"});
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch
