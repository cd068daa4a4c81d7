// SPDX-License-Identifier: Apache-2.0
// Adders of gates against literal streams, bit by bit.
#include "kernels/sc/hardware/adder.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/math/random.h"
#include "kernels/sc/hardware/accumulator.h"
#include "tests/kernels/sc/hardware/literal.h"

namespace stoch {
namespace {

using test::LiteralProduct;
using test::Settings;

// The sum of one group in one cycle.
int64_t GroupSum(const ScOperator& op, const std::vector<LiteralProduct>& products, size_t begin, size_t end,
                 size_t t) {
  const auto group = static_cast<size_t>(op.config.adder_group);
  const bool xnor = op.config.gate == ScGate::kXnor;
  const auto bit = [&](size_t i, int sign) {  // of input i of the gates that take products of this sign
    return begin + i < end && products[begin + i].sign == sign && products[begin + i].bits[t];
  };
  switch (op.config.adder) {
    case ScAdder::kCounter: break;
    case ScAdder::kOr: {
      bool either[2] = {false, false};
      for (size_t i = 0; i < group; ++i) {
        either[0] = either[0] || bit(i, 1);
        either[1] = either[1] || bit(i, -1);
      }
      return static_cast<int>(either[0]) - static_cast<int>(either[1]);
    }
    case ScAdder::kMux: {
      const uint64_t draw = RandomBits(op.config.source_seed, 5, t);
      const auto selected = static_cast<size_t>((static_cast<unsigned __int128>(draw) * group) >> 64);
      if (begin + selected >= end) return 0;
      const LiteralProduct& product = products[begin + selected];
      if (xnor) return product.bits[t] ? 1 : -1;
      return product.bits[t] ? product.sign : 0;
    }
    case ScAdder::kApc: {
      const auto count = [&](int sign) {
        int64_t sum = 0;
        for (size_t i = 0; 2 * i < group; ++i) {
          const bool x = bit(2 * i, sign), y = bit(2 * i + 1, sign);
          sum += 2 * static_cast<int>(i % 2 == 0 ? x && y : x || y);
        }
        return sum;
      };
      return xnor ? 2 * count(1) - static_cast<int64_t>(end - begin) : count(1) - count(-1);
    }
  }
  return 0;
}

int64_t LiteralSum(const ScOperator& op, const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<LiteralProduct> products;
  for (size_t d = 0; d < a.size(); ++d) products.push_back(test::Literal(op, static_cast<int>(d), a[d], b[d]));
  const auto group = static_cast<size_t>(op.config.adder_group);
  int64_t sum = 0;
  for (size_t begin = 0; begin < a.size(); begin += group) {
    for (size_t t = 0; t < static_cast<size_t>(op.config.stoc_len); ++t) {
      sum += GroupSum(op, products, begin, std::min(begin + group, a.size()), t);
    }
  }
  return sum;
}

std::vector<int> Levels(const ScOperator& op, size_t dims, uint64_t stream) {
  const int low = op.code == ScCode::kAsymmetric ? 0 : -op.q_max;
  std::vector<int> levels;
  for (size_t d = 0; d < dims; ++d) {
    levels.push_back(low + static_cast<int>(RandomBits(11, stream, d) % static_cast<uint64_t>(op.q_max - low + 1)));
  }
  return levels;
}

class Adder : public testing::TestWithParam<Settings> {};

TEST_P(Adder, IsThatOfLiteralStreams) {
  const ScOperatorPtr op = test::OperatorOf(GetParam());
  const ScAdderStreams adder(*op);
  int64_t different = 0;
  for (const size_t dims : {size_t{1}, size_t{2}, size_t{40}, size_t{67}}) {
    const std::vector<int> a = Levels(*op, dims, 2 * dims), b = Levels(*op, dims, 2 * dims + 1);
    const int64_t sum = adder.Sum(a.data(), b.data(), 1, 0, static_cast<int64_t>(dims));
    EXPECT_EQ(sum, LiteralSum(*op, a, b)) << dims << " dimensions";
    int64_t counts = 0;
    for (size_t d = 0; d < dims; ++d) counts += SignedCount(*op, static_cast<int64_t>(d), a[d], b[d]);
    different += sum != counts ? 1 : 0;
  }
  EXPECT_GT(different, 0) << "the adder is a counter";
}

INSTANTIATE_TEST_SUITE_P(
    Gates, Adder,
    testing::Values(Settings{{"halve", "1"}, {"adder", "or"}, {"adder_group", "2"}},
                    Settings{{"adder", "or"}, {"adder_group", "7"}, {"stoc_len", "100"}},
                    Settings{{"gate", "and"}, {"adder", "or"}, {"adder_group", "3"}},
                    Settings{{"gate", "and"}, {"mode", "unipolar"}, {"adder", "or"}, {"adder_group", "5"}},
                    Settings{{"halve", "1"}, {"adder", "mux"}, {"adder_group", "4"}, {"source_seed", "9"}},
                    Settings{{"gate", "and"}, {"adder", "mux"}, {"adder_group", "8"}},
                    Settings{{"gate", "xnor"}, {"adder", "mux"}, {"adder_group", "4"}, {"stoc_len", "70"}},
                    Settings{{"halve", "1"}, {"adder", "apc"}, {"adder_group", "6"}},
                    Settings{{"gate", "and"}, {"adder", "apc"}, {"adder_group", "16"}, {"stoc_len", "17"}},
                    Settings{{"gate", "xnor"}, {"adder", "apc"}, {"adder_group", "6"}, {"stoc_len", "64"}},
                    Settings{{"sc_prec", "4"}, {"gate", "and"}, {"adder", "or"}, {"adder_group", "256"}}));

TEST(Adder, OfOneInputIsACounter) {
  for (const char* gate : {"enabled", "and"}) {
    const ScOperatorPtr op = test::OperatorOf({{"gate", gate}, {"adder", "or"}, {"adder_group", "1"}});
    const ScAdderStreams adder(*op);
    const std::vector<int> a = Levels(*op, 130, 1), b = Levels(*op, 130, 2);
    int64_t counts = 0;
    for (size_t d = 0; d < a.size(); ++d) counts += SignedCount(*op, static_cast<int64_t>(d), a[d], b[d]);
    EXPECT_EQ(adder.Sum(a.data(), b.data(), 1, 0, 130), counts) << gate;
  }
}

TEST(Adder, OfAMultiplexerCountsEachInputForAll) {
  const ScOperatorPtr plain = test::OperatorOf({{"halve", "1"}});
  const ScOperatorPtr mux = test::OperatorOf({{"halve", "1"}, {"adder", "mux"}, {"adder_group", "8"}});
  EXPECT_EQ(mux->gain, plain->gain * 8.0f);
}

}  // namespace
}  // namespace stoch
