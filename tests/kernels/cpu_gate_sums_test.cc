// SPDX-License-Identifier: Apache-2.0
// Sums by gates of every instruction set against words of streams.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/sc/hardware/adder.h"
#include "kernels/sc/hardware/gate_steps.h"
#include "kernels/sc/hardware/words.h"

namespace stoch::cpu {
namespace {

using Entries = std::vector<std::pair<std::string, std::string>>;

ScConfig MakeConfig(const Entries& entries) {
  ScConfig config;
  for (const auto& [name, value] : entries) SetScParameter(config, name, value);
  return config;
}

// Levels anywhere in the code's range, as codes.
std::vector<uint8_t> RandomCodes(std::mt19937& random, const ScOperator& op, int64_t n) {
  const int low = op.code == ScCode::kAsymmetric ? 0 : -op.q_max;
  std::uniform_int_distribution<int> level(low, op.q_max);
  std::vector<uint8_t> codes(static_cast<size_t>(n));
  for (uint8_t& code : codes) code = CodeOfLevel(op, level(random));
  return codes;
}

class GateSums : public testing::TestWithParam<std::string_view> {};

TEST_P(GateSums, AreThoseOfStreams) {
  const Simd& simd = SelectSimd(GetParam());
  std::mt19937 random(7);
  for (const Entries& entries : {Entries{{"halve", "1"}, {"adder", "or"}, {"adder_group", "2"}},
                                 Entries{{"adder", "or"}, {"adder_group", "7"}, {"stoc_len", "100"}},
                                 Entries{{"gate", "and"}, {"mode", "unipolar"}, {"adder", "or"}, {"adder_group", "5"}},
                                 Entries{{"halve", "1"}, {"adder", "mux"}, {"adder_group", "3"}},
                                 Entries{{"gate", "xnor"}, {"adder", "mux"}, {"adder_group", "6"}, {"stoc_len", "70"}},
                                 Entries{{"halve", "1"}, {"adder", "apc"}, {"adder_group", "6"}},
                                 Entries{{"gate", "xnor"}, {"adder", "apc"}, {"adder_group", "40"}, {"stoc_len", "96"}},
                                 Entries{{"sc_prec", "4"}, {"gate", "and"}, {"adder", "or"}, {"adder_group", "256"}}}) {
    const ScOperatorPtr op = MakeScOperator(MakeConfig(entries));
    const ScAdderStreams streams(*op);
    const ScGateSteps steps(*op);
    const ScGateTables tables = steps.tables();
    Array<uint8_t> scratch = MakeArray<uint8_t>(GateCall::ScratchBytes(tables.levels, tables.group));
    for (const auto& [dims, rows, blocks] : {std::tuple{1, 1, 1}, {67, 3, 3}, {300, 2, 6}}) {
      const int64_t first_dim = dims == 67 ? 7 * tables.group : 0;
      const std::vector<uint8_t> a = RandomCodes(random, *op, rows * dims);
      const std::vector<uint8_t> b = RandomCodes(random, *op, int64_t{64} * blocks * dims);
      std::vector<const uint8_t*> left;
      for (int t = 0; t < rows; ++t) left.push_back(a.data() + t * dims);
      std::vector<int32_t> sums(static_cast<size_t>(rows * blocks * 64), -1), expected;
      simd.gate_sums({&tables, left.data(), rows, first_dim, dims, b.data(), dims * int64_t{64}, blocks, sums.data(),
                      reinterpret_cast<uint64_t*>(scratch.get())});
      std::vector<int> x(static_cast<size_t>(dims)), y(static_cast<size_t>(dims));
      for (int64_t i = 0; i < rows * blocks * int64_t{64}; ++i) {
        const int64_t block = i / 64 % blocks;
        for (int64_t d = 0; d < dims; ++d) {
          x[static_cast<size_t>(d)] = LevelOfCode(*op, left[static_cast<size_t>(i / 64 / blocks)][d]);
          y[static_cast<size_t>(d)] = LevelOfCode(*op, b[static_cast<size_t>((block * dims + d) * 64 + i % 64)]);
        }
        expected.push_back(static_cast<int32_t>(streams.Sum(x.data(), y.data(), 1, first_dim, dims)));
      }
      EXPECT_EQ(expected, sums) << Describe(op->config) << ", " << dims << " dimensions";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, GateSums, testing::ValuesIn(SupportedSimd()),
                         [](const auto& variant) { return std::string(variant.param); });

}  // namespace
}  // namespace stoch::cpu
