// SPDX-License-Identifier: Apache-2.0
// kernels/math: accuracy against the platform's long double, and recorded bits that every build must give.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>

#include "kernels/math/divergence.h"
#include "kernels/math/divisor.h"
#include "kernels/math/elementary.h"
#include "kernels/math/gated.h"
#include "kernels/math/half.h"
#include "kernels/math/nonlinear_view.h"
#include "kernels/math/number_formats.h"
#include "kernels/math/quantize.h"
#include "kernels/math/random.h"
#include "kernels/math/reduce.h"
#include "kernels/math/signed_codes.h"
#include "kernels/math/softmax_exp.h"

namespace stoch {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// FNV-1a over the bytes of values, in order: a whole range in one constant.
class BitsHash {
 public:
  template <typename T>
  void Add(T value) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    for (const unsigned char byte : bytes) hash_ = (hash_ ^ byte) * 0x100000001b3ull;
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ull;
};

// Device code reads tables through the view.
TEST(NonlinearView, HasTheBitsOfTheTable) {
  NonlinearTable table;
  for (int i = 0; i < 37; ++i) {
    const auto x = static_cast<float>(i);
    table.cuts.push_back(0.1f * x * x - 3.0f);
    table.values.push_back(std::sin(x));
    table.slopes.push_back(0.3f - 0.02f * x);
  }
  std::mt19937 random(7);
  for (int rounding = 0; rounding < 4; ++rounding) {
    table.in_bits = (rounding & 1) != 0 ? std::optional<int>(3) : std::nullopt;
    table.out_bits = (rounding & 2) != 0 ? std::optional<int>(6) : std::nullopt;
    const NonlinearView view = ViewOf(table);
    const auto same = [](float a, float b) { return FloatToBits(a) == FloatToBits(b); };
    for (const float x : table.cuts) {
      EXPECT_TRUE(same(view.At(x), table.At(x))) << x;
      EXPECT_TRUE(same(view.At(std::nextafter(x, -kInfinity)), table.At(std::nextafter(x, -kInfinity)))) << x;
    }
    EXPECT_TRUE(same(view.ExpAt(-kInfinity), 0.0f));
    for (int i = 0; i < 100000; ++i) {
      const float x = BitsToFloat(static_cast<uint32_t>(random()));
      if (!IsFinite(x)) continue;
      ASSERT_TRUE(same(view.At(x), table.At(x)) && same(view.ExpAt(x), table.ExpAt(x))) << x;
      const float v = BitsToFloat(static_cast<uint32_t>(random()) & 0x7fffffffu);
      ASSERT_TRUE(same(view.RsqrtAt(v), table.RsqrtAt(v)) || v != v) << v;
    }
    for (const float v : {0.0f, 1e-45f, 3e-39f, 1.17549435e-38f, 0.25f, 1.0f, 4.0f, 3.4e38f, kInfinity}) {
      EXPECT_TRUE(same(view.RsqrtAt(v), table.RsqrtAt(v))) << v;
    }
  }
}

// Every number of E4M3 by its definition.
double E4m3Number(int code) {
  const int exponent = code >> 3 & 15;
  const double magnitude = exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(1 + (code & 7) / 8.0, exponent - 7);
  return code > 127 ? -magnitude : magnitude;
}

TEST(E4m3, LevelsAreNumbersAndCodesTheNearestEvenOnes) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN
    const double number = E4m3Number(code);
    EXPECT_EQ(E4m3Level(static_cast<uint8_t>(code)), number * 512) << code;
    EXPECT_EQ(E4m3Code(static_cast<float>(number)), code);
    if ((code & 0x7f) >= 0x7e) continue;
    const double next = E4m3Number(code + 1);
    const auto middle = static_cast<float>((number + next) / 2);  // exact: one bit more
    EXPECT_EQ(E4m3Code(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(E4m3Code(std::nextafter(middle, static_cast<float>(number))), code);
    EXPECT_EQ(E4m3Code(std::nextafter(middle, static_cast<float>(next))), code + 1);
  }
  for (const float large : {449.0f, 470.0f, 1e6f, 3e38f}) {
    EXPECT_EQ(E4m3Code(large), 0x7e);
    EXPECT_EQ(E4m3Code(-large), 0xfe);
  }
  EXPECT_EQ(E4m3Code(1e-42f), 0);
  EXPECT_EQ(E4m3Scale(0.0f), 1e-8f / 448.0f);
}

TEST(MxInt8, ScalesArePowersOfTwoAndProductsAreRoundedOnce) {
  EXPECT_EQ(MxExponent(1.0f), 0);
  EXPECT_EQ(MxExponent(1.99f), 0);
  EXPECT_EQ(MxExponent(std::nextafter(1.0f, 0.0f)), -1);
  EXPECT_EQ(MxExponent(3e38f), 127);
  for (const float tiny : {0.0f, 1e-45f, 1e-39f}) EXPECT_EQ(MxExponent(tiny), -127);
  EXPECT_EQ(MxScale(0.0f), std::ldexp(1.0f, -133));
  EXPECT_EQ(MxScale(1.5f), 1.0f / 64);
  // Scales whose product is beyond float.
  const float small = MxScale(1e-30f), large = MxScale(3e38f);
  EXPECT_EQ(MxProduct(12345, small, small), static_cast<float>(std::ldexp(12345.0, 2 * (MxExponent(1e-30f) - 6))));
  EXPECT_EQ(MxProduct(3, large, small), std::ldexp(3.0f, 121 + MxExponent(1e-30f) - 6));
  EXPECT_EQ(MxProduct(0, large, large), 0.0f);
  EXPECT_EQ(MxProduct(1, large, large), kInfinity);
}

TEST(Exp, WithinTwoUlp) {
  BitsHash hash;
  for (float x = -86.9f; x < 88.6f; x += 0.00137f) {
    const float y = Exp(x);
    hash.Add(y);
    const long double exact = std::exp(static_cast<long double>(x));
    const long double ulp = static_cast<long double>(std::nextafter(y, kInfinity)) - static_cast<long double>(y);
    ASSERT_LE(std::fabs(static_cast<long double>(y) - exact), 2 * ulp) << x;
  }
  EXPECT_EQ(hash.value(), 0xbbb773381b0b1f58u) << std::hex << hash.value();
}

TEST(Exp, EndsOfTheRange) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(-87.1f), 0.0f);
  EXPECT_EQ(Exp(-kInfinity), 0.0f);
  EXPECT_EQ(Exp(88.8f), kInfinity);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isfinite(Exp(88.7f)));
  EXPECT_GT(Exp(-87.0f), 0.0f);
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
}

// Around every half of a level and at random, for scales of every binary order that they take.
TEST(SignedCodes, HaveTheBitsOfDivisions) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> part(-1.02f, 1.02f);
  for (const int q_max : {127, 63, 7}) {
    for (int exponent = -50; exponent <= 49; ++exponent) {
      const float scale = std::ldexp(1.0f + std::abs(part(random)) * 0.97f, exponent);
      const SignedCodes codes(scale, q_max);
      ASSERT_TRUE(codes.IsExact());
      const auto check = [&](float x) {
        for (const float near : {x, std::nextafter(x, kInfinity), std::nextafter(x, -kInfinity)}) {
          for (const float of : {near, -near})
            ASSERT_EQ(codes.Of(of), SignMagnitude(BipolarLevel(of, scale, q_max))) << of << " by " << scale;
        }
      };
      for (int half = 0; half <= 2 * q_max + 2; ++half) check(static_cast<float>(half) * 0.5f * scale);
      for (int i = 0; i < 300; ++i) check(part(random) * static_cast<float>(q_max) * scale);
      for (const float x : {0x1p-61f, 0x1p-100f, 0x1p-149f}) check(x);
    }
  }
  for (const float scale : {0.0f, 0x1p-51f, 0x1p51f, kInfinity, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_FALSE(SignedCodes(scale, 127).IsExact()) << scale;
}

// Every 499th float from -0 to -inf; all 2139095041 were compared once.
TEST(SoftmaxExp, HasTheBitsOfExp) {
  for (uint32_t bits = 0x80000000u; bits <= 0xff800000u; bits += 499) {
    const float x = BitsToFloat(bits);
    ASSERT_EQ(FloatToBits(SoftmaxExp(x)), FloatToBits(Exp(x))) << x;
  }
  for (const float x : {0.0f, -87.0f, std::nextafterf(-87.0f, -100.0f), -kInfinity})
    EXPECT_EQ(FloatToBits(SoftmaxExp(x)), FloatToBits(Exp(x))) << x;
  EXPECT_TRUE(std::isnan(SoftmaxExp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Divisor, HasTheBitsOfDivision) {
  std::mt19937_64 random(7);
  const auto significand = [&](uint64_t kind) {
    const auto bits = static_cast<uint32_t>(random()) & 0x7fffffu;
    return 1.0f + static_cast<float>(kind == 0 ? bits | 0x7ffff0u : kind == 1 ? bits & 0xfu : bits) * 0x1p-23f;
  };
  const auto exponent = [&](int most) { return static_cast<int>(random() % static_cast<uint64_t>(2 * most)) - most; };
  for (int i = 0; i < 3000000; ++i) {
    const float b = std::ldexp(significand(random() % 4), exponent(59));
    const float a = std::ldexp(significand(random() % 4), exponent(59));
    ASSERT_EQ(FloatToBits(Divisor(b).Quotient(a)), FloatToBits(a / b)) << a << " / " << b;
  }
  // Quotients next to the middle of two floats.
  for (int i = 0; i < 3000000; ++i) {
    const float b = significand(2);
    const auto a = static_cast<float>(static_cast<double>(b) * (static_cast<double>(significand(2)) + 0x1p-24));
    ASSERT_EQ(FloatToBits(Divisor(b).Quotient(a)), FloatToBits(a / b)) << a << " / " << b;
  }
  EXPECT_EQ(Divisor(3.0f).Quotient(0.0f), 0.0f);
  for (const float b : {0.0f, 0x1p-61f, 0x1p61f, kInfinity, -1.0f, std::numeric_limits<float>::quiet_NaN()})
    EXPECT_FALSE(Divisor(b).IsExact()) << b;
  EXPECT_TRUE(Divisor(Divisor::kLeast).IsExact() && Divisor(Divisor::kMost).IsExact());
}

TEST(Silu, IsXTimesSigmoid) {
  for (float x = -30.0f; x < 30.0f; x += 0.011f) {
    const double exact = static_cast<double>(x) / (1.0 + std::exp(-static_cast<double>(x)));
    EXPECT_NEAR(Silu(x), exact, 4e-7 * std::fabs(exact) + 1e-12);
  }
  EXPECT_EQ(Silu(-200.0f), -0.0f);
  EXPECT_EQ(Silu(200.0f), 200.0f);
}

// p_base * ln(p_base / p), and nothing of what p_base is too small for.
TEST(Tanh, WithinThreeUlp) {
  double worst = 0;
  for (int i = -4000; i <= 4000; ++i) {
    const float x = static_cast<float>(i) * 0.00371f;
    const double exact = std::tanh(static_cast<double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(std::max(std::abs(exact), 1e-30)) - 23);
    worst = std::max(worst, std::abs(static_cast<double>(Tanh(x)) - exact) / ulp);
  }
  EXPECT_LT(worst, 3.0);
  EXPECT_EQ(Tanh(0.0f), 0.0f);
  EXPECT_EQ(Tanh(kInfinity), 1.0f);
  EXPECT_EQ(Tanh(-kInfinity), -1.0f);
  EXPECT_TRUE(std::isnan(Tanh(NAN)));
}

// torch.nn.functional.gelu(x, approximate="tanh") of 0.5, 1, 2, 3, -1, -3 in double.
TEST(GeluTanh, HasTheValuesOfTorch) {
  EXPECT_NEAR(GeluTanh(0.5f), 0.34571400982514394, 1e-7);
  EXPECT_NEAR(GeluTanh(1.0f), 0.8411919906082768, 1e-7);
  EXPECT_NEAR(GeluTanh(2.0f), 1.954597694087775, 2e-7);
  EXPECT_NEAR(GeluTanh(-1.0f), -0.15880800939172324, 1e-7);
  EXPECT_NEAR(GeluTanh(-3.0f), -0.0036373920817729943, 3e-7);
  EXPECT_EQ(SoftCap(0.0f, 30.0f), 0.0f);
  EXPECT_NEAR(SoftCap(1.0f, 30.0f), 30 * std::tanh(1.0 / 30), 1e-7);
  EXPECT_EQ(SoftCap(1e6f, 30.0f), 30.0f);
}

TEST(DivergenceTerm, RelativeErrorBelow1e13) {
  BitsHash hash;
  for (double base = -700.0; base <= 0.0; base += 0.0173) {
    const double own = base * 0.75 - 0.375;
    const double term = DivergenceTerm(base, own);
    hash.Add(term);
    const long double exact =
        std::exp(static_cast<long double>(base)) * (static_cast<long double>(base) - static_cast<long double>(own));
    ASSERT_LE(std::fabs(static_cast<long double>(term) - exact), std::fabs(exact) * 1e-13L) << base;
  }
  EXPECT_EQ(hash.value(), 0xbdf6957493345b33u) << std::hex << hash.value();
  EXPECT_EQ(DivergenceTerm(-700.1, -3.0), 0.0);
  EXPECT_EQ(DivergenceTerm(-1e38, -3.0), 0.0);
  EXPECT_EQ(DivergenceTerm(-2.0, -2.0), 0.0);
  EXPECT_EQ((LogSum{3.0, 0.5}).LogProb(2.0f), -1.5);
}

TEST(Log, RelativeErrorBelow1e14) {
  BitsHash hash;
  std::mt19937_64 random(1);
  for (int i = 0; i < 100'000; ++i) {
    uint64_t bits = random() & 0x7fffffffffffffffull;
    if ((bits >> 52) == 0x7ff) bits ^= uint64_t{1} << 62;
    if (bits == 0) continue;
    const double x = BitsToDouble(bits);
    const double y = Log(x);
    hash.Add(y);
    const long double exact = std::log(static_cast<long double>(x));
    ASSERT_LE(std::fabs(static_cast<long double>(y) - exact), 1e-14L * std::fabs(exact)) << x;
  }
  for (double x = 0.9; x < 1.1; x += 1.7e-6) {
    const long double exact = std::log(static_cast<long double>(x));
    ASSERT_LE(std::fabs(static_cast<long double>(Log(x)) - exact), 1e-14L * std::fabs(exact)) << x;
  }
  EXPECT_EQ(Log(1.0), 0.0);
  EXPECT_EQ(hash.value(), 0x647836f0a5dca619u) << std::hex << hash.value();
}

TEST(ExpDouble, RelativeErrorBelow1e14) {
  BitsHash hash;
  for (double x = -690.0; x < 690.0; x += 0.0173) {
    const double y = ExpDouble(x);
    hash.Add(y);
    const long double exact = std::exp(static_cast<long double>(x));
    ASSERT_LE(std::fabs(static_cast<long double>(y) - exact), 1e-14L * exact) << x;
  }
  EXPECT_EQ(hash.value(), 0xe0e983aaa066f09fu) << std::hex << hash.value();
}

TEST(SinCos, AbsoluteErrorBelow1e12) {
  BitsHash hash;
  const auto check = [&](double x) {
    double sine = 0;
    double cosine = 0;
    SinCos(x, &sine, &cosine);
    hash.Add(sine);
    hash.Add(cosine);
    ASSERT_LE(std::fabs(static_cast<long double>(sine) - std::sin(static_cast<long double>(x))), 1e-12L) << x;
    ASSERT_LE(std::fabs(static_cast<long double>(cosine) - std::cos(static_cast<long double>(x))), 1e-12L) << x;
  };
  for (double x = -20.0; x < 20.0; x += 0.00071) check(x);
  for (double x = 1.0; x < 131072.0; x += 17.3) check(x);  // positions of a long context
  EXPECT_EQ(hash.value(), 0x9e21f8854ba52e33u) << std::hex << hash.value();
}

TEST(Half, EveryF16ValueSurvives) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const uint16_t half = static_cast<uint16_t>(h);
    const float value = F16ToFloat(half);
    if ((h & 0x7fff) > 0x7c00) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    ASSERT_EQ(FloatToF16(value), half) << h;
    // The definition: sign, significand and exponent.
    const int exponent = static_cast<int>(h >> 10 & 31);
    const float fraction = static_cast<float>(h & 0x3ff) + (exponent > 0 ? 1024.0f : 0.0f);
    const float magnitude = exponent == 31 ? kInfinity : std::ldexp(fraction, (exponent > 0 ? exponent : 1) - 25);
    ASSERT_EQ(value, (h & 0x8000) != 0 ? -magnitude : magnitude) << h;
  }
}

TEST(Half, RoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const double low = static_cast<double>(F16ToFloat(static_cast<uint16_t>(h)));
    const double high = static_cast<double>(F16ToFloat(static_cast<uint16_t>(h + 1)));
    const float middle = static_cast<float>((low + high) / 2);
    const uint32_t even = h % 2 == 0 ? h : h + 1;
    ASSERT_EQ(FloatToF16(middle), even);
    ASSERT_EQ(FloatToF16(std::nextafter(middle, 0.0f)), h);
    ASSERT_EQ(FloatToF16(std::nextafter(middle, kInfinity)), h + 1);
  }
  EXPECT_EQ(FloatToF16(65519.9f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(-1e30f), 0xfc00);
}

TEST(Bf16, IsTheUpperHalf) {
  EXPECT_EQ(Bf16ToFloat(0x3f80), 1.0f);
  EXPECT_EQ(Bf16ToFloat(0xc049), -3.140625f);
}

TEST(Random, RecordedBits) {
  BitsHash hash;
  for (uint64_t i = 0; i < 10'000; ++i) {
    hash.Add(RandomBits(1, 2, i));
    hash.Add(RandomUniform(3, 4, i));
    hash.Add(RandomWeight(5, 6, i, 0.02f));
  }
  EXPECT_EQ(hash.value(), 0xc55d5e1e810d23e3u) << std::hex << hash.value();
}

TEST(Random, WeightsHaveTheirSpreadAndStreamsDiffer) {
  constexpr uint64_t kCount = 200'000;
  double sum = 0;
  double squares = 0;
  double product = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = RandomWeight(1, 1, i, 0.02f);
    sum += x;
    squares += x * x;
    product += x * static_cast<double>(RandomWeight(1, 2, i, 0.02f));
    ASSERT_LE(std::fabs(x), 0.02 * 3.47);
  }
  EXPECT_NEAR(sum / kCount, 0.0, 2e-4);
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.02, 1e-4);
  EXPECT_NEAR(product / kCount, 0.0, 5e-6);
  for (uint64_t i = 0; i < kCount; ++i) {
    const float u = RandomUniform(7, 0, i);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
  }
}

TEST(Reduce, FoldsByHalves) {
  // (l0 + l2) + (l1 + l3): in float the neighbours of 1e8 are 8 away, so the order shows.
  float lanes[4] = {1e8f, 1.0f, -1e8f, 3.0f};
  EXPECT_EQ(FoldLanes<4>(lanes), 4.0f);
  float other[4] = {1e8f, -1e8f, 1.0f, 3.0f};
  EXPECT_EQ(FoldLanes<4>(other), 0.0f);
}

TEST(Quantize, BipolarClampsAndRoundsHalfToEven) {
  EXPECT_EQ(BipolarScale(0.0f, 127), kScaleFloor / 127.0f);
  EXPECT_EQ(BipolarScale(254.0f, 127), 2.0f);
  EXPECT_EQ(BipolarLevel(0.5f, 1.0f, 127), 0);
  EXPECT_EQ(BipolarLevel(1.5f, 1.0f, 127), 2);
  EXPECT_EQ(BipolarLevel(-2.5f, 1.0f, 127), -2);
  EXPECT_EQ(BipolarLevel(-1e9f, 1.0f, 127), -127);
  EXPECT_EQ(SignMagnitude(-5), 0x85);
  EXPECT_EQ(SignMagnitude(0), 0x00);
  EXPECT_EQ(SignMagnitude(127), 0x7f);
}

TEST(Quantize, UnipolarCoversItsRange) {
  const float scale = UnipolarScale(-1.0f, 3.0f, 255);
  EXPECT_EQ(scale, 4.0f / 255.0f);
  const float zero = UnipolarZero(-1.0f, scale, 255);
  EXPECT_EQ(zero, 64.0f);
  EXPECT_EQ(UnipolarCode(-1.0f, scale, zero, 255), 0);
  EXPECT_EQ(UnipolarCode(3.0f, scale, zero, 255), 255);
  EXPECT_EQ(UnipolarCode(0.0f, scale, zero, 255), 64);
  EXPECT_EQ(UnipolarZero(5.0f, scale, 255), 0.0f);
}

}  // namespace
}  // namespace stoch
