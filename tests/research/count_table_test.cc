// SPDX-License-Identifier: Apache-2.0
// gate=counts: tables of one's own, and those of every built-in gate written and read back.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/registry.h"
#include "kernels/sc/sc_parameters.h"
#include "loader/research/count_file.h"
#include "loader/research/npy_file.h"
#include "loader/sha256.h"
#include "research/golden/backend_product.h"
#include "research/products/operator_digest.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

ScConfig Parse(const std::string& text) {
  ScConfig config;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t equals = text.find('=', begin);
    SetScParameter(config, text.substr(begin, equals - begin), text.substr(equals + 1, end - equals - 1));
    begin = end + 1;
  }
  return config;
}

ScConfig CountsOf(const CountTable& table, const std::string& settings) {
  ScConfig config = Parse(settings + ",gate=counts,counts=mine");
  config.count_table = CountTablePtr(std::make_shared<CountTable>(table));
  return config;
}

HostMatrix Waves(int64_t rows, int64_t cols, double phase) {
  HostMatrix x{rows, cols, {}};
  for (int64_t i = 0; i < rows * cols; ++i) {
    x.values.push_back(static_cast<float>(std::sin(phase + 0.7 * static_cast<double>(i)) * (i % 7 == 0 ? 0.0 : 1.5)));
  }
  return x;
}

// The product by the definition and by the CPU backend.
void ExpectBothGive(const ScConfig& config, const HostMatrix& a, const HostMatrix& b, const std::vector<float>& y) {
  EXPECT_EQ(MultiplyReference(a, b, config, {}).y.values, y) << Describe(config);
  const std::shared_ptr<Backend> backend = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  EXPECT_EQ(ProductOnBackend(*backend, a, b, config, nullptr, {}), y) << Describe(config);
}

TEST(CountTable, EveryGateWrittenAndReadBackIsTheSameProduct) {
  const HostMatrix a = Waves(3, 70, 0.1), b = Waves(5, 70, 1.3);
  for (const std::string settings :
       {"halve=1,stoc_len=96,chunk_d=32", "stoc_len=256", "gate=and,halve=1,chunk_d=32", "gate=xnor,stoc_len=100",
        "sc_prec=6,mode=unipolar,stoc_len=40", "sc_prec=3,stoc_len=5,scramble_masks=4"}) {
    const ScConfig config = Parse(settings);
    const ScOperatorPtr op = MakeScOperator(config);
    const std::vector<int64_t> shape = {op->masks, op->levels, op->levels};
    const CountTable table = ParseCountFile(NpyOfInt16(shape, op->counts), "counts.npy");
    const ScConfig own = CountsOf(table, "sc_prec=" + std::to_string(op->config.sc_prec) +
                                             ",stoc_len=" + std::to_string(op->config.stoc_len) +
                                             ",chunk_d=" + std::to_string(op->config.chunk_d) +
                                             (op->config.mode == ScMode::kUnipolar ? ",mode=unipolar" : ""));
    EXPECT_EQ(OperatorSha256(*MakeScOperator(own)), OperatorSha256(*op)) << settings;
    ExpectBothGive(own, a, b, MultiplyReference(a, b, config, {}).y.values);
  }
}

// Products with 0 that are not 0, negative entries and entries beyond 8 bits: only real channels count.
TEST(CountTable, AnyEntriesAreSummedAsTheyAre) {
  CountTable table;
  table.masks = 4;
  table.levels = 8;
  for (int i = 0; i < 4 * 64; ++i) table.entries.push_back((i * 2654435761u >> 16) % 2001 - 1000);
  const HostMatrix a = Waves(2, 37, 0.4), b = Waves(3, 37, 2.2);
  const ScConfig config = CountsOf(table, "sc_prec=4,stoc_len=900,chunk_d=16");
  const ReferenceProduct product = MultiplyReference(a, b, config, {});
  // The sums by their definition, signs outside the table.
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t m = 0; m < 3; ++m) {
      for (int64_t c = 0; c < 3; ++c) {
        const int64_t begin = 16 * c, dims = std::min<int64_t>(16, 37 - begin);
        const auto codes = [&](const float* row) {
          float most = 1e-5f;
          for (int64_t d = 0; d < dims; ++d) most = std::max(most, std::abs(row[begin + d]));
          std::vector<int> q;
          for (int64_t d = 0; d < dims; ++d) q.push_back(static_cast<int>(std::rint(row[begin + d] / (most / 7))));
          return q;
        };
        const std::vector<int> qa = codes(a.row(n)), qb = codes(b.row(m));
        int32_t acc = 0;
        for (int64_t d = 0; d < dims; ++d) {
          const int x = qa[static_cast<size_t>(d)], y = qb[static_cast<size_t>(d)];
          const int count = table.at(static_cast<int>(d % 4), std::abs(x), std::abs(y));
          acc += (x < 0) != (y < 0) ? -count : count;
        }
        EXPECT_EQ(product.acc[static_cast<size_t>((n * 3 + c) * 3 + m)], acc) << n << ' ' << c << ' ' << m;
      }
    }
  }
  ExpectBothGive(config, a, b, product.y.values);
}

TEST(CountTable, FortranOrderAndNarrowTypesAreRead) {
  std::string bytes = NpyOfInt16(std::vector<int64_t>{2, 4, 4}, std::vector<int16_t>(32, 0));
  const size_t data = bytes.size() - 64;
  for (int i = 0; i < 32; ++i) bytes[data + static_cast<size_t>(2 * i)] = static_cast<char>(i);
  EXPECT_EQ(ParseCountFile(bytes, "c.npy").at(1, 2, 3), 16 + 2 * 4 + 3);
  bytes.replace(bytes.find("False"), 5, "True ");
  EXPECT_EQ(ParseCountFile(bytes, "f.npy").at(1, 2, 3), 1 + 2 * 2 + 3 * 8);  // the first index is fastest
  std::string narrow = bytes.substr(0, data) + std::string(32, '\x05');
  narrow.replace(narrow.find("'<i2'"), 5, "'|i1'");
  EXPECT_EQ(ParseCountFile(narrow, "n.npy").entries, std::vector<int32_t>(32, 5));
}

TEST(CountTable, WrongTablesAreOneSentence) {
  const auto npy = [](const std::vector<int64_t>& shape, int16_t value = 0) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return NpyOfInt16(shape, std::vector<int16_t>(static_cast<size_t>(count), value));
  };
  const auto refused = [](const std::string& bytes, std::initializer_list<std::string_view> words) {
    test::ExpectInvalid([&] { ParseCountFile(bytes, "c.npy"); }, words);
  };
  refused("no header", {"c.npy: no .npy header"});
  refused(npy({3, 4, 4}), {"c.npy: [3, 4, 4]", "power of two in 1..256"});
  refused(npy({2, 4, 8}), {"c.npy: [2, 4, 8]"});
  refused(npy({127, 127}), {"c.npy: [127, 127]"});
  refused(npy({4}), {"c.npy: [4]"});
  refused(npy({4, 4}, INT16_MIN), {"c.npy: the entry -32768", "-32767..32767"});
  refused(npy({4, 4}).substr(0, 150), {"c.npy: ", "numbers of a shape of 16"});
  std::string floats = npy({4, 4});
  floats.replace(floats.find("<i2"), 3, "<f2");
  refused(floats, {"another type of number"});
  CountTable table;
  table.levels = 64;
  table.entries.assign(64 * 64, 0);
  const auto resolve = [&](const std::string& settings) { Resolve(CountsOf(table, settings)); };
  test::ExpectInvalid([&] { resolve("sc_prec=8,stoc_len=9"); },
                      {"mine: [1, 64, 64]: allowed for sc_prec=8 is [masks, 128, 128] or [masks, 256, 256]"});
  test::ExpectInvalid([&] { resolve("sc_prec=7,mode=unipolar,stoc_len=9"); },
                      {"with mode=unipolar is [masks, 128, 128]"});
  test::ExpectInvalid([&] { resolve("sc_prec=7"); }, {"stoc_len = none: allowed is 1..32767 with gate = counts"});
  test::ExpectInvalid([&] { resolve("sc_prec=7,stoc_len=40000"); }, {"stoc_len", "40000", "1..32767"});
  test::ExpectInvalid([] { Resolve(Parse("gate=counts,stoc_len=9")); }, {"counts", "a file, with gate = counts"});
  test::ExpectInvalid([] { Resolve(Parse("counts=x.npy")); }, {"counts = x.npy", "nothing, unless gate = counts"});
  test::ExpectInvalid([] { MakeScOperator(Parse("gate=counts,counts=x.npy,stoc_len=9")); }, {"x.npy", "was not read"});
}

TEST(OperatorSha256, IsOfWhatIsComputedAndNotOfSettings) {
  const auto of = [](const std::string& settings) { return OperatorSha256(*MakeScOperator(Parse(settings))); };
  EXPECT_EQ(of("halve=1").size(), 64u);
  EXPECT_EQ(of("halve=1"), of("halve=1,stoc_len=128,source_seed=5"));                  // sobol has no seed
  EXPECT_EQ(of("stoc_len=256,scramble=counter"), of("stoc_len=256,scramble=bitrev"));  // not scrambled
  EXPECT_NE(of("halve=1"), of("halve=1,chunk_d=128"));
  EXPECT_NE(of("halve=1"), of("halve=1,group_b=2"));
  EXPECT_NE(of("halve=1"), of("halve=1,granularity=per_tensor"));
  EXPECT_NE(of("halve=1"), of("halve=1,stoc_len=127"));
  EXPECT_NE(of("source=lfsr"), of("source=lfsr,source_seed=2"));
  EXPECT_NE(of("arith=int8"), of("arith=int7"));
}

}  // namespace
}  // namespace stoch
