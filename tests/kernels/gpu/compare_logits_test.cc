// SPDX-License-Identifier: Apache-2.0
// Comparisons of logits on a GPU have the CPU's bits: every remainder of what a cluster takes at once, real vocabularies,
// rows on their own and many.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "kernels/registry.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/gpu/both_backends.h"
#include "tests/kernels/random_floats.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::RandomFloats;

std::vector<LogitComparison> Compare(Backend& backend, const std::vector<float>& logits, const std::vector<float>& base,
                                     int64_t vocab) {
  const Device device = backend.devices().front();
  const auto rows = static_cast<int64_t>(logits.size()) / vocab;
  const DeviceTensor on(backend, {rows, vocab}, logits), of(backend, {rows, vocab}, base);
  const Buffer targets = backend.AllocateShared(device, rows * 4);
  const Buffer out = backend.AllocateShared(device, rows * int64_t{sizeof(LogitComparison)});
  for (int64_t i = 0; i < rows; ++i) {
    static_cast<int32_t*>(targets.data())[i] = static_cast<int32_t>((i * 7919 + 5) % vocab);
  }
  CompareLogitsCall call;
  call.site = {-1, "compare"};
  call.logits = on.view();
  call.base = of.view();
  call.targets = MakeView(targets.data(), DType::kI32, device, rows);
  call.out = MakeView(out.data(), DType::kU8, device, rows, int64_t{sizeof(LogitComparison)});
  backend.CompareLogits(call);
  backend.Synchronize(device);
  const auto* answers = static_cast<const LogitComparison*>(out.data());
  return {answers, answers + rows};
}

void ExpectSame(Backend& cpu, Backend& cuda, int64_t vocab, int64_t rows, float spread) {
  const auto seed = static_cast<uint64_t>(vocab * 100 + rows);
  std::vector<float> base = RandomFloats(seed, rows * vocab), ours = RandomFloats(seed + 1, rows * vocab);
  for (float& value : base) value *= spread;
  for (size_t i = 0; i < ours.size(); ++i) ours[i] = base[i] + 0.25f * spread * ours[i];
  if (rows > 2) {
    base[static_cast<size_t>(vocab + vocab / 2)] = std::numeric_limits<float>::quiet_NaN();
    ours[static_cast<size_t>(2 * vocab)] = -std::numeric_limits<float>::infinity();
  }
  const std::vector<LogitComparison> expected = Compare(cpu, ours, base, vocab);
  const std::vector<LogitComparison> actual = Compare(cuda, ours, base, vocab);
  ASSERT_EQ(expected.size(), actual.size());
  // The struct has no padding.
  static_assert(sizeof(LogitComparison) == 3 * sizeof(double) + 2 * sizeof(int32_t));
  for (size_t i = 0; i < expected.size(); ++i) {
    // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits are what is compared
    ASSERT_EQ(std::memcmp(&expected[i], &actual[i], sizeof(LogitComparison)), 0)
        << vocab << " tokens, row " << i << " of " << rows << ": kld " << actual[i].kld << ", expected "
        << expected[i].kld << ", top " << actual[i].top << ", expected " << expected[i].top;
  }
}

class CudaCompareLogits : public test::BothBackends {};

// Eight blocks take 4096 tokens at once, one block 512; a warp's range is a multiple of 32.
TEST_F(CudaCompareLogits, EveryRemainder) {
  for (const int64_t size : {32, 256, 512, 4096, 8192}) {
    for (const int64_t vocab : {size - 1, size, size + 1, size + 31, size + 33}) ExpectSame(*cpu_, *cuda_, vocab, 4, 3);
  }
}

TEST_F(CudaCompareLogits, RealVocabularies) {
  for (const int64_t vocab : {32000, 50257, 128256, 151936, 262144}) {
    for (const int64_t rows : {1, 33}) ExpectSame(*cpu_, *cuda_, vocab, rows, 3);
  }
  ExpectSame(*cpu_, *cuda_, 128256, 3, 200);  // most tokens have no probability
}

TEST_F(CudaCompareLogits, ManyRows) { ExpectSame(*cpu_, *cuda_, 17, 70000, 2); }

}  // namespace
}  // namespace stoch
