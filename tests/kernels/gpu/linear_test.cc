// SPDX-License-Identifier: Apache-2.0
// Linears on the GPU give the CPU's bits: every operator, prologue, shape class and number of rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/registry.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/gpu/both_backends.h"
#include "tests/kernels/random_floats.h"

namespace stoch {
namespace {

struct Shape {
  std::vector<int64_t> weight_rows;  // of the weights of one call
  int64_t cols = 0;
  int64_t rows = 0;
};

struct Case {
  Prologue prologue = Prologue::kNone;
  bool add = false;
  DType dtype = DType::kF32;
  std::optional<float> constant_x = {};  // every x
};

// The outputs of one call, one after another.
std::vector<float> RunOn(Backend& backend, const LinearSpec& spec, const Shape& shape, const Case& c) {
  const Device device = backend.devices()[0];
  std::vector<std::unique_ptr<LinearWeight>> weights;
  std::vector<std::vector<float>> numbers;
  std::vector<std::vector<uint16_t>> halves;
  LinearCall call;
  call.site = {3, "test_proj"};
  call.prologue = c.prologue;
  call.add_to_out = c.add;
  std::vector<test::DeviceTensor> outs;
  outs.reserve(shape.weight_rows.size());
  for (size_t i = 0; i < shape.weight_rows.size(); ++i) {
    const int64_t rows = shape.weight_rows[i];
    numbers.push_back(test::RandomFloats(100 + i, rows * shape.cols));
    WeightSource source;
    source.name = "w" + std::to_string(i);
    source.rows = rows;
    source.cols = shape.cols;
    source.dtype = c.dtype;
    source.host = numbers.back().data();
    if (c.dtype != DType::kF32) {
      std::vector<uint16_t>& half = halves.emplace_back();
      for (const float x : numbers.back()) {
        half.push_back(c.dtype == DType::kF16 ? FloatToF16(x) : static_cast<uint16_t>(FloatToBits(x) >> 16));
      }
      source.host = half.data();
    }
    weights.push_back(backend.MakeLinear(device, std::span(&source, 1), spec));
    call.weights.push_back(weights.back().get());
    outs.emplace_back(backend, std::vector<int64_t>{shape.rows, rows}, test::RandomFloats(200 + i, shape.rows * rows));
    call.outs.push_back(outs.back().view());
  }
  std::vector<float> x_values = test::RandomFloats(7, shape.rows * shape.cols);
  if (c.constant_x) x_values.assign(x_values.size(), *c.constant_x);
  const test::DeviceTensor x(backend, {shape.rows, shape.cols}, x_values);
  const test::DeviceTensor x2(backend, {shape.rows, shape.cols}, test::RandomFloats(8, shape.rows * shape.cols));
  const test::DeviceTensor norm(backend, {shape.cols}, test::RandomFloats(9, shape.cols));
  call.x = x.view();
  if (c.prologue == Prologue::kSiluMul) call.x2 = x2.view();
  if (c.prologue == Prologue::kRmsNorm) call.norm_weight = norm.view();
  call.norm_eps = 1e-5f;
  backend.Linear(call);
  backend.CheckFinite(device);
  std::vector<float> result;
  for (const test::DeviceTensor& out : outs) {
    const std::vector<float> values = out.Read();
    result.insert(result.end(), values.begin(), values.end());
  }
  return result;
}

void ExpectSameBits(const LinearSpec& spec, const Shape& shape, const Case& c) {
  static const auto cpu = OpenBackend("cpu", {}, nullptr);
  static const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  const std::vector<float> expected = RunOn(*cpu, spec, shape, c);
  const std::vector<float> actual = RunOn(*cuda, spec, shape, c);
  ASSERT_EQ(expected.size(), actual.size());
  double norm = 0;
  size_t wrong = 0;
  size_t first = expected.size();
  for (size_t i = 0; i < expected.size(); ++i) {
    norm += std::fabs(expected[i]);
    if (FloatToBits(expected[i]) == FloatToBits(actual[i])) continue;
    first = std::min(first, i);
    ++wrong;
  }
  EXPECT_GT(norm, 0.0);
  EXPECT_EQ(wrong, 0u) << "of " << expected.size() << "; first at " << first << ": expected " << expected[first]
                       << ", got " << actual[first];
}

LinearSpec ScSpec(const std::string& parameters) {
  ScConfig config;
  config.chunk_d = 128;
  size_t begin = 0;
  while (begin < parameters.size()) {
    const size_t end = std::min(parameters.find(',', begin), parameters.size());
    const std::string item = parameters.substr(begin, end - begin);
    const size_t equals = item.find('=');
    SetScParameter(config, item.substr(0, equals), item.substr(equals + 1));
    begin = end + 1;
  }
  return {Precision::kSc, MakeScOperator(config)};
}

class CudaLinearOperator : public testing::TestWithParam<const char*> {};

TEST_P(CudaLinearOperator, SameBits) {
  STOCH_CUDA_OR_SKIP();
  const LinearSpec spec = ScSpec(GetParam());
  for (const int64_t rows : {1, 2, 3, 4, 6, 12, 17, 40}) {
    SCOPED_TRACE(rows);
    ExpectSameBits(spec, {{70, 33}, 300, rows}, {});
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaLinearOperator,
                         testing::Values("halve=1", "", "halve=1,stoc_len=64", "halve=1,stoc_len=64,scramble=random",
                                         "halve=1,stoc_len=96", "halve=1,stoc_len=48", "halve=1,stoc_len=32",
                                         "stoc_len=200", "halve=1,scramble=off", "scramble_masks=256",
                                         "scramble=counter,halve=1", "sc_prec=5", "sc_prec=3", "halve=1,chunk_d=64",
                                         "halve=1,chunk_d=100", "halve=1,chunk_d=0", "chunk_d=0", "halve=1,group_a=2",
                                         "halve=1,group_b=4", "halve=1,group_a=3,group_b=7,chunk_d=96",
                                         "granularity=per_tensor,chunk_d=0,halve=1", "granularity=per_tensor,chunk_d=0",
                                         "mode=unipolar,chunk_d=0", "mode=unipolar,chunk_d=0,stoc_len=128",
                                         "gate=and,halve=1", "source=lfsr,halve=1"));

class CudaLinearRows : public testing::TestWithParam<int64_t> {};

TEST_P(CudaLinearRows, SameBits) {
  STOCH_CUDA_OR_SKIP();
  const int64_t rows = GetParam();
  for (const char* parameters : {"halve=1", ""}) {
    SCOPED_TRACE(parameters);
    const LinearSpec spec = ScSpec(parameters);
    ExpectSameBits(spec, {{1}, 1, rows}, {});
    ExpectSameBits(spec, {{31, 64, 1}, 172, rows}, {Prologue::kRmsNorm});
    ExpectSameBits(spec, {{200}, 1408, rows}, {Prologue::kSiluMul, true});
    ExpectSameBits(spec, {{96, 32, 32}, 4096, rows}, {Prologue::kRmsNorm, false, DType::kBF16});
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaLinearRows,
                         testing::Values(1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 24, 25, 32, 33, 48, 49, 64, 65, 96, 97, 130,
                                         200));

// Rows enough that floats become streams without codes in memory: tiles and groups of rows that are not full, chunks that end
// within a block of dimensions, and operators whose rows become codes first.
TEST(CudaLinear, ManyRows) {
  STOCH_CUDA_OR_SKIP();
  for (const char* parameters :
       {"halve=1", "halve=1,stoc_len=96", "halve=1,stoc_len=64", "halve=1,stoc_len=48", "halve=1,stoc_len=32",
        "halve=1,scramble=off", "halve=1,chunk_d=64", "halve=1,chunk_d=100", "halve=1,scramble_masks=128,chunk_d=48",
        "halve=1,group_a=2", "stoc_len=200"}) {
    SCOPED_TRACE(parameters);
    const LinearSpec spec = ScSpec(parameters);
    ExpectSameBits(spec, {{70, 33}, 300, 515}, {});
    ExpectSameBits(spec, {{40}, 1156, 700}, {Prologue::kRmsNorm, true});
    ExpectSameBits(spec, {{40}, 264, 577}, {Prologue::kSiluMul});
    ExpectSameBits(spec, {{20}, 270, 520}, {Prologue::kSiluMul});  // no vectors of four
  }
}

TEST(CudaLinear, LargeShapes) {
  STOCH_CUDA_OR_SKIP();
  for (const int64_t rows : {1, 2, 4, 7, 24, 32, 48}) {
    SCOPED_TRACE(rows);
    ExpectSameBits(ScSpec("halve=1"), {{4096, 1024, 1024}, 4096, rows}, {Prologue::kRmsNorm, false, DType::kF16});
    ExpectSameBits(ScSpec(""), {{2048}, 14336, rows}, {Prologue::kSiluMul, true, DType::kF16});
  }
}

// Blocks of one token hand products to each other as words that are 0 until they are there: products of 0 are there too,
// what was handed over is gone before the next linear, and where words are too few a barrier takes their place.
TEST(CudaLinear, ProductsOfOneTokenAreHandedOver) {
  STOCH_CUDA_OR_SKIP();
  const LinearSpec spec = ScSpec("halve=1");
  ExpectSameBits(spec, {{300, 70}, 1000, 1}, {.add = true, .constant_x = 0.0f});
  ExpectSameBits(spec, {{4096}, 14336, 1}, {.add = true, .constant_x = 0.0f});  // a block sums 112 chunks together
  for (const int64_t rows : {5000, 70, 5000}) ExpectSameBits(spec, {{rows}, 4096, 1}, {});
  ExpectSameBits(ScSpec("halve=1,chunk_d=16"), {{65792}, 1040, 1}, {});  // 4.3 of 4.2 million words
}

TEST(CudaLinear, ManyWeightRowsForABatch) {
  STOCH_CUDA_OR_SKIP();
  // Nearly as many tiles as SMs; chunks enough that the other ones help.
  for (const int64_t rows : {2, 3, 7, 13, 20, 28, 40, 50, 90, 150}) {
    SCOPED_TRACE(rows);
    ExpectSameBits(ScSpec("halve=1"), {{25000, 700}, 1100, rows}, {Prologue::kNone, true});
  }
}

// Tables of 9 to 16 tokens: whole chunks, and chunks that eight blocks of an H200 share, the last of them shorter and with
// rows of two weights.
TEST(CudaLinear, LargeShapesForSixteenTokens) {
  STOCH_CUDA_OR_SKIP();
  for (const int64_t rows : {9, 16}) {
    SCOPED_TRACE(rows);
    ExpectSameBits(ScSpec("halve=1"), {{2048}, 14336, rows}, {Prologue::kSiluMul, true, DType::kF16});
    ExpectSameBits(ScSpec("halve=1"), {{5000, 3136}, 2000, rows}, {Prologue::kRmsNorm});
    ExpectSameBits(ScSpec("halve=1"), {{20000, 12736}, 2000, rows}, {Prologue::kRmsNorm});
  }
}

TEST(CudaLinear, LargestCounts) {
  STOCH_CUDA_OR_SKIP();
  // Every |x| is the largest of its chunk, so every product with a largest weight counts 256, or 128 where halved:
  // neither fits a byte with a sign.
  for (const char* parameters : {"", "halve=1"}) {
    for (const float x : {0.5f, -0.5f}) {
      for (const int64_t rows : {1, 2, 3, 4, 8, 16, 40}) {
        SCOPED_TRACE(std::string(parameters) + " rows " + std::to_string(rows));
        ExpectSameBits(ScSpec(parameters), {{64}, 256, rows}, {Prologue::kNone, false, DType::kF32, x});
      }
    }
  }
}

TEST(CudaLinear, Exact) {
  STOCH_CUDA_OR_SKIP();
  const LinearSpec spec{Precision::kFp32, nullptr};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t rows : {1, 2, 3, 5, 8, 9, 16, 17, 33, 70, 130}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + " rows " + std::to_string(rows));
      ExpectSameBits(spec, {{1, 130}, 1, rows}, {Prologue::kNone, false, dtype});
      ExpectSameBits(spec, {{300, 15}, 172, rows}, {Prologue::kRmsNorm, true, dtype});
      ExpectSameBits(spec, {{257}, 1024, rows}, {Prologue::kSiluMul, false, dtype});
      ExpectSameBits(spec, {{515}, 1400, rows}, {Prologue::kNone, true, dtype});
    }
  }
}

TEST(CudaLinear, HalvesAreClose) {
  STOCH_CUDA_OR_SKIP();
  const char* ptx = std::getenv("CUDA_FORCE_PTX_JIT");
  if (ptx != nullptr && std::string_view(ptx) == "1") GTEST_SKIP() << "cuBLAS has no PTX for CUDA_FORCE_PTX_JIT=1";
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  for (const Prologue prologue : {Prologue::kNone, Prologue::kRmsNorm, Prologue::kSiluMul}) {
    for (const int64_t cols : {8, 512, 4096, 5640}) {
      for (const int64_t rows : {1, 2, 3, 4, 7, 40}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(prologue)) + " cols " + std::to_string(cols) + " rows " +
                     std::to_string(rows));
        const Shape shape{{64, 3, 128}, cols, rows};
        const Case c{prologue, prologue != Prologue::kSiluMul, DType::kF16};
        const std::vector<float> expected = RunOn(*cpu, {Precision::kFp32, nullptr}, shape, c);
        const std::vector<float> actual = RunOn(*cuda, {Precision::kFp16, nullptr}, shape, c);
        double error = 0;
        double norm = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
          error += std::pow(static_cast<double>(actual[i] - expected[i]), 2);
          norm += std::pow(static_cast<double>(expected[i]), 2);
        }
        EXPECT_LT(std::sqrt(error), 2e-3 * std::sqrt(norm));
        EXPECT_GT(error, 0.0);  // halves did round
      }
    }
  }
}

TEST(CudaLinear, WeightsUnpackToTheCpusCodes) {
  STOCH_CUDA_OR_SKIP();
  const auto cpu = OpenBackend("cpu", {}, nullptr);
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  std::vector<WeightSource> parts(2);
  for (int i = 0; i < 2; ++i) {
    parts[static_cast<size_t>(i)] = {
        "part" + std::to_string(i), 50, 300, nullptr, DType::kF32, nullptr, 5, 6, i * 15000, 0.02f, 0};
  }
  for (const char* parameters :
       {"halve=1", "group_b=8", "mode=unipolar,chunk_d=0", "granularity=per_tensor,chunk_d=0"}) {
    SCOPED_TRACE(parameters);
    const LinearSpec spec = ScSpec(parameters);
    const auto expected = cpu->Unpack(*cpu->MakeLinear(cpu->devices()[0], parts, spec));
    const auto actual = cuda->Unpack(*cuda->MakeLinear(cuda->devices()[0], parts, spec));
    EXPECT_EQ(expected.codes, actual.codes);
    EXPECT_TRUE(test::SameBits(expected.scales, actual.scales));
  }
  const LinearSpec exact{Precision::kFp32, nullptr};
  EXPECT_TRUE(test::SameBits(cpu->Unpack(*cpu->MakeLinear(cpu->devices()[0], parts, exact)).values,
                             cuda->Unpack(*cuda->MakeLinear(cuda->devices()[0], parts, exact)).values));
}

TEST(CudaLinear, BadNumbersAreNamed) {
  STOCH_CUDA_OR_SKIP();
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  const Device device = cuda->devices()[0];
  for (const LinearSpec& spec : {ScSpec("halve=1"), LinearSpec{Precision::kFp32, nullptr}}) {
    std::vector<float> good = test::RandomFloats(1, 64 * 200);
    std::vector<float> bad = good;
    bad[63 * 200 + 199] = std::nanf("");
    WeightSource parts[2] = {{"good", 64, 200, good.data()}, {"bad", 64, 200, bad.data()}};
    try {
      cuda->MakeLinear(device, parts, spec);
      ADD_FAILURE() << "NaN was accepted";
    } catch (const InvalidInput& error) {
      EXPECT_NE(std::string(error.what()).find("tensor bad"), std::string::npos) << error.what();
    }
    const auto weight = cuda->MakeLinear(device, std::span(parts, 1), spec);
    for (const int64_t rows : {1, 2, 6, 12, 20, 515}) {
      std::vector<float> values = test::RandomFloats(2, rows * 200);
      values.back() = INFINITY;
      const test::DeviceTensor x(*cuda, {rows, 200}, values);
      const test::DeviceTensor out(*cuda, {rows, 64}, std::vector<float>(static_cast<size_t>(rows * 64)));
      LinearCall call;
      call.site = {5, "o_proj"};
      call.x = x.view();
      call.weights = {weight.get()};
      call.outs = {out.view()};
      cuda->Linear(call);
      try {
        cuda->CheckFinite(device);
        ADD_FAILURE() << "infinity was not noticed";
      } catch (const InvalidInput& error) {
        EXPECT_NE(std::string(error.what()).find("layer 5 o_proj"), std::string::npos) << error.what();
      }
      EXPECT_NO_THROW(cuda->CheckFinite(device));
    }
  }
}

TEST(CudaLinear, GraphsReplayTheSameBits) {
  STOCH_CUDA_OR_SKIP();
  const auto cuda = OpenBackend("cuda:0", {}, nullptr);
  const Device device = cuda->devices()[0];
  const LinearSpec spec = ScSpec("halve=1");
  const std::vector<float> numbers = test::RandomFloats(1, 512 * 512);
  const WeightSource source{"w", 512, 512, numbers.data()};
  const auto weight = cuda->MakeLinear(device, std::span(&source, 1), spec);
  const test::DeviceTensor x(*cuda, {1, 512}, test::RandomFloats(3, 512));
  const test::DeviceTensor y(*cuda, {1, 512}, std::vector<float>(512));
  LinearCall call;
  call.site = {0, "q_proj"};
  call.x = x.view();
  call.weights = {weight.get()};
  call.outs = {y.view()};
  std::vector<float> eager;
  for (int i = 0; i < 5; ++i) {
    const std::vector<float> values = test::RandomFloats(50 + static_cast<uint64_t>(i), 512);
    cuda->CopyFromHost(x.view(), values.data());
    cuda->Linear(call);
    eager = y.Read();
    cuda->CopyFromHost(y.view(), std::vector<float>(512, -1.0f).data());
    cuda->RunGraph(device, "test", [&] { cuda->Linear(call); });
    EXPECT_TRUE(test::SameBits(eager, y.Read())) << i;
  }
}

// A graph that finds no memory: the body runs eagerly, with the same bits, and nobody notices.
TEST(CudaLinear, AGraphThatCannotBeMadeRunsEagerly) {
  STOCH_CUDA_OR_SKIP();
  const auto cuda = test::OpenLimited({{"STOCH_TEST_FAIL_GRAPHS", "1"}});
  const Device device = cuda->devices()[0];
  const std::vector<float> numbers = test::RandomFloats(1, 512 * 512);
  const WeightSource source{"w", 512, 512, numbers.data()};
  const auto weight = cuda->MakeLinear(device, std::span(&source, 1), ScSpec("halve=1"));
  const test::DeviceTensor x(*cuda, {1, 512}, test::RandomFloats(3, 512));
  const test::DeviceTensor y(*cuda, {1, 512}, std::vector<float>(512));
  LinearCall call;
  call.site = {0, "q_proj"};
  call.x = x.view();
  call.weights = {weight.get()};
  call.outs = {y.view()};
  cuda->Linear(call);
  const std::vector<float> expected = y.Read();
  int runs = 0;
  for (int i = 0; i < 4; ++i) {
    cuda->CopyFromHost(y.view(), std::vector<float>(512, -1.0f).data());
    cuda->RunGraph(device, "test", [&] {
      ++runs;
      cuda->Linear(call);
    });
    EXPECT_TRUE(test::SameBits(expected, y.Read())) << i;
  }
  EXPECT_EQ(runs, 5);  // four eager ones and the one that was recorded in vain
}

}  // namespace
}  // namespace stoch
