// SPDX-License-Identifier: Apache-2.0
// The small ops and rules of a backend: memory, devices, passes, embedding, gathering, argmax.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/math/half.h"
#include "kernels/math/random.h"
#include "tests/kernels/device_tensor.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using test::DeviceTensor;

std::vector<float> Numbers(uint64_t seed, size_t n) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

class BackendOps : public testing::TestWithParam<test::BackendUnderTest> {};

TEST_P(BackendOps, RunsWhatWasAskedFor) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  EXPECT_EQ(backend->name(), std::string_view(GetParam().device).substr(0, backend->name().size()));
  const DeviceInfo info = backend->info(backend->devices().front());
  EXPECT_NE(info.name.find(GetParam().cpu_variant), std::string::npos) << info.name;
  EXPECT_GT(info.total_bytes, 0);
  EXPECT_GT(info.free_bytes, 0);
}

TEST_P(BackendOps, MemoryIsZeroedAndCopied) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const Buffer buffer = backend->Allocate(device, 400);
  const TensorView view = MakeView(buffer.data(), DType::kF32, device, 10, 10);
  std::vector<float> values(100, 1.0f);
  backend->CopyToHost(values.data(), view);
  EXPECT_EQ(values, std::vector<float>(100, 0.0f));
  const std::vector<float> numbers = Numbers(1, 50);
  backend->CopyFromHost(Slice(view, 0, 0, 5), numbers.data());
  backend->Copy(Slice(view, 0, 5, 5), Slice(view, 0, 0, 5));
  backend->CopyToHost(values.data(), view);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(values[i], numbers[i % 50]);
  test::ExpectInvalid([&] { backend->CopyToHost(values.data(), Slice(view, 1, 0, 5)); }, {"dense"});
}

// Other processes take and free memory too, so one of many tries has to agree.
TEST_P(BackendOps, ABufferTakesWhatIsSaid) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  EXPECT_EQ(backend->AllocatedBytes(100), 100);
  for (const int64_t bytes : {int64_t{3} << 20, int64_t{25952256}}) {
    if (device.kind == DeviceKind::kCpu) {
      EXPECT_EQ(backend->AllocatedBytes(bytes), bytes);
      continue;
    }
    bool agrees = false;
    for (int i = 0; i < 50 && !agrees; ++i) {
      const int64_t before = backend->info(device).free_bytes;
      const Buffer buffer = backend->Allocate(device, bytes);
      agrees = before - backend->info(device).free_bytes == backend->AllocatedBytes(bytes);
    }
    EXPECT_TRUE(agrees) << bytes;
  }
}

TEST_P(BackendOps, EmbedReadsEveryKindOfTable) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  constexpr int64_t kVocab = 30;
  for (const int64_t hidden : {44, 272}) {  // halves in vectors of 8: not aligned, aligned
    const std::vector<float> numbers = Numbers(2, kVocab * hidden);
    std::vector<uint16_t> halves;
    for (const float value : numbers) halves.push_back(FloatToF16(value));
    WeightSource f32{"embed", kVocab, hidden, numbers.data(), DType::kF32};
    WeightSource f16{"embed", kVocab, hidden, halves.data(), DType::kF16};
    WeightSource random{"embed", kVocab, hidden};
    random.seed = 3;
    random.first = 77;
    random.stddev = 0.02f;

    PassLayout layout;
    layout.ids = {29, 0, 7, 7};
    layout.sequences = {{0, 4, 0, {}}};
    const auto pass = backend->MakePass(device, {8, 2, 1});
    backend->UploadPass(*pass, layout);
    for (const WeightSource* source : {&f32, &f16, &random}) {
      const auto table = backend->MakeEmbedding(device, *source, nullptr);
      EXPECT_EQ(table->vocab_size(), kVocab);
      EXPECT_EQ(table->hidden_size(), hidden);
      const DeviceTensor out(*backend, {4, hidden}, std::vector<float>(4 * hidden));
      backend->Embed(*table, *pass, out.view());
      const std::vector<float> actual = out.Read();
      for (size_t i = 0; i < actual.size(); ++i) {
        const size_t at = static_cast<size_t>(layout.ids[i / hidden]) * hidden + i % hidden;
        const float expected = source == &f32   ? numbers[at]
                               : source == &f16 ? F16ToFloat(halves[at])
                                                : RandomWeight(3, 0, 77 + at, 0.02f);
        ASSERT_EQ(actual[i], expected) << i;
      }
    }
  }
}

TEST_P(BackendOps, NonFiniteVectorsAndTablesAreNamed) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  std::vector<float> numbers = Numbers(2, 60);
  numbers[37] = std::numeric_limits<float>::quiet_NaN();
  const WeightSource table{"model.embed_tokens.weight", 6, 10, numbers.data(), DType::kF32};
  test::ExpectInvalid([&] { backend->MakeEmbedding(device, table, nullptr); },
                      {"model.embed_tokens.weight", "NaN or infinity"});
  const WeightSource norm{"model.norm.weight", 1, 60, numbers.data(), DType::kF32};
  test::ExpectInvalid([&] { backend->MakeVector(device, norm); }, {"model.norm.weight", "NaN or infinity"});
}

TEST_P(BackendOps, SelectRowsTakesTheOutputRows) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  PassLayout layout;
  layout.ids = {1, 2, 3, 4, 5};
  layout.sequences = {{0, 2, 0, {}}, {2, 3, 0, {}}};
  layout.output_rows = {1, 4};
  const auto pass = backend->MakePass(device, {8, 2, 1});
  backend->UploadPass(*pass, layout);
  const std::vector<float> numbers = Numbers(3, 5 * 7);
  const DeviceTensor x(*backend, {5, 7}, numbers);
  const DeviceTensor out(*backend, {2, 7}, std::vector<float>(14));
  backend->SelectRows(*pass, x.view(), out.view());
  const std::vector<float> actual = out.Read();
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(actual[i], numbers[7 + i]);
    EXPECT_EQ(actual[7 + i], numbers[28 + i]);
  }
}

TEST_P(BackendOps, ArgmaxTakesTheLowestOfEquals) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr size_t kVocab = 1003;
  std::vector<float> logits = Numbers(4, 4 * kVocab);
  logits[0 * kVocab + 1002] = 100;
  logits[1 * kVocab + 400] = 100;
  logits[1 * kVocab + 3] = 100;
  logits[1 * kVocab + 999] = 100;
  for (size_t i = 0; i < kVocab; ++i) logits[2 * kVocab + i] = -5.0f;
  for (size_t i = 0; i < kVocab; ++i) logits[3 * kVocab + i] = -std::numeric_limits<float>::max();
  logits[3 * kVocab + 777] = -3e38f;
  const DeviceTensor in(*backend, {4, kVocab}, logits);
  const Device device = in.view().device;
  const Buffer ids = backend->AllocateShared(device, 4 * int64_t{sizeof(int32_t)});
  backend->Argmax(in.view(), MakeView(ids.data(), DType::kI32, device, 4));
  backend->Synchronize(device);
  const auto* read = static_cast<const int32_t*>(ids.data());
  EXPECT_EQ(std::vector<int32_t>(read, read + 4), (std::vector<int32_t>{1002, 3, 0, 777}));
}

TEST_P(BackendOps, GraphsRunTheirBody) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const std::vector<float> numbers = Numbers(6, 12);
  const DeviceTensor from(*backend, {12}, numbers);
  const DeviceTensor to(*backend, {12}, std::vector<float>(12));
  for (int run = 0; run < 3; ++run) {
    backend->RunGraph(device, "copy", [&] { backend->Copy(to.view(), from.view()); });
    EXPECT_EQ(to.Read(), numbers);
    backend->CopyFromHost(to.view(), std::vector<float>(12).data());
  }
}

TEST_P(BackendOps, PassesKeepToTheirLimits) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const auto pass = backend->MakePass(backend->devices().front(), {4, 1, 2});
  PassLayout layout;
  layout.ids = {1, 2, 3, 4, 5};
  layout.sequences = {{0, 5, 0, {}}};
  test::ExpectInvalid([&] { backend->UploadPass(*pass, layout); }, {"5"});
  layout.ids = {1, 2, 3};
  test::ExpectInvalid([&] { backend->UploadPass(*pass, layout); }, {"pass"});
}

INSTANTIATE_TEST_SUITE_P(Backends, BackendOps, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

// ---------------------------------------------------------------------------------------- devices and registry ----

TEST(LogicalDevices, OperandsOnAnotherDeviceAreRefused) {
  const auto backend = OpenBackend("cpu:4", {}, nullptr);
  ASSERT_EQ(backend->devices().size(), size_t{4});
  const DeviceTensor a(*backend, {2, 8}, Numbers(1, 16), 2);
  const DeviceTensor b(*backend, {3, 8}, Numbers(2, 24), 2);
  const DeviceTensor out(*backend, {2, 3}, std::vector<float>(6), 2);
  const DeviceTensor elsewhere(*backend, {2, 3}, std::vector<float>(6), 1);
  const ScOperatorPtr op = MakeScOperator({});
  backend->ScMatmul(a.view(), b.view(), *op, out.view());
  test::ExpectInvalid([&] { backend->ScMatmul(a.view(), b.view(), *op, elsewhere.view()); }, {"cpu:1", "cpu:2"});
  backend->Copy(elsewhere.view(), out.view());
  EXPECT_TRUE(test::SameBits(elsewhere.Read(), out.Read()));
  const Device missing{DeviceKind::kCpu, 4};
  test::ExpectInvalid([&] { backend->Allocate(missing, 8); }, {"cpu:4", "cpu:0..3"});
  const Device gpu{DeviceKind::kCuda, 0};
  test::ExpectInvalid([&] { backend->Allocate(gpu, 8); }, {"cuda:0"});
}

TEST(LogicalDevices, NonFiniteBelongsToItsDevice) {
  const auto backend = OpenBackend("cpu:2", {}, nullptr);
  const DeviceTensor a(*backend, {1, 2}, {NAN, 1.0f}, 1);
  const DeviceTensor b(*backend, {1, 2}, {1.0f, 1.0f}, 1);
  const DeviceTensor out(*backend, {1, 1}, {0.0f}, 1);
  backend->ScMatmul(a.view(), b.view(), *MakeScOperator({}), out.view());
  backend->CheckFinite(backend->devices()[0]);
  test::ExpectInvalid([&] { backend->CheckFinite(backend->devices()[1]); }, {"NaN"});
}

TEST(Registry, UnknownNamesAreErrorsNeverAFallback) {
  for (const char* name : {"", "gpu", "cpu:0", "cpu:x", "cpu:-1", "cuda:", "cuda:0,", "cuda:x", "cuda:99", "cpux"}) {
    test::ExpectInvalid([&] { OpenBackend(name, {}, nullptr); }, {std::string("'") + name + "'"});
  }
  EXPECT_EQ(OpenBackend("cpu:1024", {}, nullptr)->devices().size(), size_t{1024});
  for (const char* name : {"cpu:1025", "cpu:2000000000", "cpu:99999999999"}) {
    test::ExpectInvalid([&] { OpenBackend(name, {}, nullptr); }, {std::string("'") + name + "'", "N = 1..1024"});
  }
  BackendOptions options;
  options.cpu_variant = "neon";
  test::ExpectInvalid([&] { OpenBackend("cpu", options, nullptr); }, {"neon", "scalar"});
  options.cpu_variant = "";
  options.threads = -1;
  test::ExpectInvalid([&] { OpenBackend("cpu", options, nullptr); }, {"threads"});
  EXPECT_EQ(BuiltBackends().front(), "cpu");
}

TEST(Registry, Fp16NeedsAGpu) {
  const auto backend = OpenBackend("cpu", {}, nullptr);
  WeightSource source{"weight", 2, 2};
  source.stddev = 1;
  test::ExpectInvalid(
      [&] {
        backend->MakeLinear(backend->devices().front(), {&source, 1}, {Precision::kFp16, nullptr});
      },
      {"weight", "fp16"});
}

}  // namespace
}  // namespace stoch
