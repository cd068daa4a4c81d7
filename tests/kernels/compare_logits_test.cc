// SPDX-License-Identifier: Apache-2.0
// Rows of logits against base rows on every backend: bits of the definition, which plain doubles agree with.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/math/elementary.h"
#include "kernels/math/random.h"
#include "kernels/math/reduce.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::RandomFloats;

constexpr uint64_t kNanBits = 0x7ff8000000000000u;

std::vector<LogitComparison> Compare(Backend& backend, const TensorView& logits, const TensorView& base,
                                     const std::vector<int32_t>& targets) {
  const Device device = backend.devices().front();
  const auto rows = static_cast<int64_t>(targets.size());
  const Buffer ids = backend.Allocate(device, rows * 4);
  const Buffer out = backend.Allocate(device, rows * int64_t{sizeof(LogitComparison)});
  CompareLogitsCall call;
  call.site = {-1, "compare"};
  call.logits = logits;
  call.base = base;
  call.targets = MakeView(ids.data(), DType::kI32, device, rows);
  call.out = MakeView(out.data(), DType::kU8, device, rows, int64_t{sizeof(LogitComparison)});
  backend.CopyFromHost(call.targets, targets.data());
  backend.CompareLogits(call);
  std::vector<LogitComparison> answers(targets.size());
  backend.CopyToHost(answers.data(), call.out);
  return answers;
}

// docs/numerics.md, read as it stands.
LogitComparison Define(const float* base, const float* logits, int64_t n, int32_t target) {
  const auto sum_of = [&](const float* row, float max) {
    float lanes[kRowLanes] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i % kRowLanes] = lanes[i % kRowLanes] + Exp(row[i] - max);
    return Log(static_cast<double>(FoldLanes<kRowLanes>(lanes)));
  };
  const auto logprob = [](float logit, float max, double log_sum) {
    return (static_cast<double>(logit) - static_cast<double>(max)) - log_sum;
  };
  const float* base_max = std::max_element(base, base + n);
  const float* max = std::max_element(logits, logits + n);
  const double base_sum = sum_of(base, *base_max), sum = sum_of(logits, *max);
  double lanes[kRowLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    const double of_base = logprob(base[i], *base_max, base_sum);
    const double term = (of_base < -700 ? 0 : ExpDouble(of_base)) * (of_base - logprob(logits[i], *max, sum));
    lanes[i % kRowLanes] = lanes[i % kRowLanes] + term;
  }
  for (int s = kRowLanes / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) lanes[j] = lanes[j] + lanes[j + s];
  }
  return {lanes[0] + 0.0, logprob(logits[target], *max, sum), logprob(base[target], *base_max, base_sum),
          static_cast<int32_t>(max - logits), static_cast<int32_t>(base_max - base)};
}

// The formula in plain doubles, from 0 to n.
double PlainKld(const float* base, const float* logits, int64_t n) {
  const auto log_sum = [&](const float* row) {
    const double max = *std::max_element(row, row + n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(row[i] - max);
    return max + std::log(sum);
  };
  const double base_sum = log_sum(base), sum = log_sum(logits);
  double kld = 0;
  for (int64_t i = 0; i < n; ++i) {
    kld += std::exp(base[i] - base_sum) * ((base[i] - base_sum) - (logits[i] - sum));
  }
  return kld;
}

testing::AssertionResult SameAnswer(const LogitComparison& a, const LogitComparison& b) {
  if (DoubleToBits(a.kld) == DoubleToBits(b.kld) && DoubleToBits(a.logprob) == DoubleToBits(b.logprob) &&
      DoubleToBits(a.base_logprob) == DoubleToBits(b.base_logprob) && a.top == b.top && a.base_top == b.base_top) {
    return testing::AssertionSuccess();
  }
  const auto text = [](const LogitComparison& of) {
    return std::to_string(of.kld) + " " + std::to_string(of.logprob) + " " + std::to_string(of.base_logprob) + " " +
           std::to_string(of.top) + " " + std::to_string(of.base_top);
  };
  return testing::AssertionFailure() << text(a) << " is not " << text(b);
}

std::vector<float> Scaled(std::vector<float> values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

std::vector<int32_t> Targets(int64_t rows, int64_t vocab) {
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < rows; ++i) targets.push_back(static_cast<int32_t>((i * 7919 + 5) % vocab));
  return targets;
}

class CompareLogitsOp : public testing::TestWithParam<test::BackendUnderTest> {};

TEST_P(CompareLogitsOp, HasTheBitsOfItsDefinition) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const int64_t vocab : {1, 2, 19, 255, 256, 257, 1003, 4095, 4097, 32771, 128256}) {
    for (const int64_t rows : {1, 5}) {
      const uint64_t seed = static_cast<uint64_t>(vocab * 10 + rows);
      const std::vector<float> base = Scaled(RandomFloats(seed, rows * vocab), 0.5f);
      std::vector<float> ours = base;
      const std::vector<float> noise = RandomFloats(seed + 1, rows * vocab);
      for (size_t i = 0; i < ours.size(); ++i) ours[i] += 0.5f * noise[i];
      const DeviceTensor on(*backend, {rows, vocab}, ours), of(*backend, {rows, vocab}, base);
      const std::vector<int32_t> targets = Targets(rows, vocab);
      const std::vector<LogitComparison> answers = Compare(*backend, on.view(), of.view(), targets);
      for (int64_t r = 0; r < rows; ++r) {
        const float* base_row = base.data() + r * vocab;
        const float* row = ours.data() + r * vocab;
        const LogitComparison& answer = answers[static_cast<size_t>(r)];
        ASSERT_TRUE(SameAnswer(answer, Define(base_row, row, vocab, targets[static_cast<size_t>(r)])))
            << vocab << " tokens, row " << r;
        const double plain = PlainKld(base_row, row, vocab);
        ASSERT_NEAR(answer.kld, plain, 1e-5 * (1 + plain)) << vocab << " tokens, row " << r;
        ASSERT_GE(answer.kld, vocab > 100 ? 0.001 : -1e-5);
      }
      const std::vector<LogitComparison> same = Compare(*backend, of.view(), of.view(), targets);
      for (const LogitComparison& answer : same) ASSERT_EQ(DoubleToBits(answer.kld), 0u) << vocab;
    }
  }
}

// Ties, both zeros, rows of one value, differences that only doubles hold, tokens of no probability.
TEST_P(CompareLogitsOp, HardRows) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kVocab = 700;
  constexpr auto kWidth = static_cast<size_t>(kVocab);
  std::vector<std::vector<float>> rows = {
      std::vector<float>(kWidth, -2.5f),           std::vector<float>(kWidth, 0.0f),
      Scaled(RandomFloats(3, kVocab), 3e37f / 60), RandomFloats(4, kVocab),
      Scaled(RandomFloats(5, kVocab), 1e-30f),     std::vector<float>(kWidth, -3e38f)};
  for (size_t i = 1; i < kWidth; i += 3) rows[1][i] = 0.5f;
  for (size_t i = 0; i < kWidth; i += 2) rows[3][i] -= 900.0f;
  rows.back()[kWidth / 2] = 3e38f;
  std::vector<float> base, ours;
  for (const auto& a : rows) {
    for (const auto& b : rows) {
      base.insert(base.end(), a.begin(), a.end());
      ours.insert(ours.end(), b.begin(), b.end());
    }
  }
  const auto count = static_cast<int64_t>(rows.size() * rows.size());
  const DeviceTensor on(*backend, {count, kVocab}, ours), of(*backend, {count, kVocab}, base);
  const std::vector<int32_t> targets = Targets(count, kVocab);
  const std::vector<LogitComparison> answers = Compare(*backend, on.view(), of.view(), targets);
  for (int64_t r = 0; r < count; ++r) {
    const auto i = static_cast<size_t>(r);
    EXPECT_TRUE(SameAnswer(answers[i], Define(base.data() + r * kVocab, ours.data() + r * kVocab, kVocab, targets[i])))
        << "base " << r / static_cast<int64_t>(rows.size()) << ", row " << r % static_cast<int64_t>(rows.size());
    EXPECT_TRUE(std::isfinite(answers[i].kld)) << r;
  }
}

// More rows than a launch takes, in slices of wider matrices.
TEST_P(CompareLogitsOp, ManyRowsInSlices) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kRows = 33000;
  constexpr int64_t kVocab = 3;
  constexpr int64_t kCols = 9;
  const std::vector<float> values = RandomFloats(11, kRows * kCols);
  const DeviceTensor on(*backend, {kRows, kCols}, values);
  const std::vector<int32_t> targets = Targets(kRows, kVocab);
  const std::vector<LogitComparison> answers =
      Compare(*backend, Slice(on.view(), 1, 1, kVocab), Slice(on.view(), 1, 5, kVocab), targets);
  for (int64_t r = 0; r < kRows; ++r) {
    const float* row = values.data() + r * kCols;
    ASSERT_TRUE(
        SameAnswer(answers[static_cast<size_t>(r)], Define(row + 5, row + 1, kVocab, targets[static_cast<size_t>(r)])))
        << r;
  }
}

TEST_P(CompareLogitsOp, RowsThatAreNotFiniteSaySoAlone) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int64_t vocab : {1, 300, 5000}) {
    constexpr int64_t kRows = 10;
    std::vector<float> base = RandomFloats(21, kRows * vocab), ours = RandomFloats(22, kRows * vocab);
    const std::vector<int32_t> targets = Targets(kRows, vocab);
    const float bad[] = {kNan, -kNan, kInfinity, -kInfinity};
    for (int64_t i = 0; i < 4; ++i) {
      base[static_cast<size_t>((2 * i) * vocab + (i * 37) % vocab)] = bad[i];
      ours[static_cast<size_t>((2 * i + 1) * vocab + vocab - 1)] = bad[i];
    }
    base[static_cast<size_t>(7 * vocab)] = kInfinity;  // with ours: both
    const DeviceTensor on(*backend, {kRows, vocab}, ours), of(*backend, {kRows, vocab}, base);
    const std::vector<LogitComparison> answers = Compare(*backend, on.view(), of.view(), targets);
    for (int64_t r = 0; r < 8; ++r) {
      const LogitComparison& answer = answers[static_cast<size_t>(r)];
      for (const double value : {answer.kld, answer.logprob, answer.base_logprob}) {
        EXPECT_EQ(DoubleToBits(value), kNanBits) << r;
      }
      EXPECT_EQ(answer.base_top < 0, r % 2 == 0 || r == 7) << r;
      EXPECT_EQ(answer.top < 0, r % 2 == 1) << r;
    }
    for (int64_t r = 8; r < kRows; ++r) {
      EXPECT_TRUE(SameAnswer(answers[static_cast<size_t>(r)], Define(base.data() + r * vocab, ours.data() + r * vocab,
                                                                     vocab, targets[static_cast<size_t>(r)])));
    }
  }
}

// Operands and answers in memory that the host shares, and targets that no vocabulary has.
TEST_P(CompareLogitsOp, SharedMemoryAndForeignTargets) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  constexpr int64_t kRows = 4, kVocab = 1003;
  const std::vector<float> base = RandomFloats(31, kRows * kVocab), ours = RandomFloats(32, kRows * kVocab);
  const std::vector<int32_t> targets = {0, -1, kVocab, kVocab - 1};
  const Buffer on = backend->AllocateShared(device, kRows * kVocab * 4);
  const Buffer of = backend->AllocateShared(device, kRows * kVocab * 4);
  const Buffer ids = backend->AllocateShared(device, kRows * 4);
  const Buffer out = backend->AllocateShared(device, kRows * int64_t{sizeof(LogitComparison)});
  const Buffer copied = backend->Allocate(device, kRows * kVocab * 4);
  std::memcpy(on.data(), ours.data(), on.bytes());
  std::memcpy(of.data(), base.data(), of.bytes());
  std::memcpy(ids.data(), targets.data(), ids.bytes());
  CompareLogitsCall call;
  call.site = {-1, "compare"};
  call.logits = MakeView(on.data(), DType::kF32, device, kRows, kVocab);
  call.base = MakeView(copied.data(), DType::kF32, device, kRows, kVocab);
  call.targets = MakeView(ids.data(), DType::kI32, device, kRows);
  call.out = MakeView(out.data(), DType::kU8, device, kRows, int64_t{sizeof(LogitComparison)});
  backend->Copy(call.base, MakeView(of.data(), DType::kF32, device, kRows, kVocab));
  backend->CompareLogits(call);
  backend->Synchronize(device);
  const auto* answers = static_cast<const LogitComparison*>(out.data());
  for (int64_t r = 0; r < kRows; ++r) {
    const bool foreign = r == 1 || r == 2;
    LogitComparison expected = Define(base.data() + r * kVocab, ours.data() + r * kVocab, kVocab,
                                      foreign ? 0 : targets[static_cast<size_t>(r)]);
    if (foreign) expected.logprob = expected.base_logprob = BitsToDouble(kNanBits);
    EXPECT_TRUE(SameAnswer(answers[r], expected)) << r;
  }
}

TEST_P(CompareLogitsOp, RefusesWhatDoesNotFit) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const DeviceTensor logits(*backend, {2, 5}, std::vector<float>(10)), base(*backend, {2, 5}, std::vector<float>(10));
  const Buffer ids = backend->Allocate(device, 8), out = backend->Allocate(device, 256);
  CompareLogitsCall good;
  good.site = {-1, "compare"};
  good.logits = logits.view();
  good.base = base.view();
  good.targets = MakeView(ids.data(), DType::kI32, device, 2);
  good.out = MakeView(out.data(), DType::kU8, device, 2, int64_t{sizeof(LogitComparison)});
  backend->CompareLogits(good);
  const auto refuses = [&](const CompareLogitsCall& call, std::initializer_list<std::string_view> words) {
    test::ExpectInvalid([&] { backend->CompareLogits(call); }, words);
  };
  CompareLogitsCall call = good;
  call.base = Slice(base.view(), 1, 0, 4);
  refuses(call, {"compare", "base is F32[2, 4]", "F32[2, 5]"});
  call = good;
  call.logits = Slice(logits.view(), 1, 0, 0);
  refuses(call, {"logits have no columns"});
  call = good;
  call.targets = Slice(good.targets, 0, 0, 1);
  refuses(call, {"targets is I32[1]"});
  call = good;
  call.out = Slice(good.out, 1, 0, 8);
  refuses(call, {"out is U8[2, 8]"});
  call = good;
  call.out.data = static_cast<char*>(out.data()) + 4;
  refuses(call, {"out is not aligned"});
  call = good;
  call.out.stride[0] = 64;
  refuses(call, {"is not dense"});
  call = good;
  call.targets = MakeView(out.data(), DType::kI32, device, 2);
  refuses(call, {"overlaps"});
}

INSTANTIATE_TEST_SUITE_P(Backends, CompareLogitsOp, testing::ValuesIn(test::BackendsUnderTest()),
                         [](const auto& backend) { return backend.param.Name(); });

}  // namespace
}  // namespace stoch
