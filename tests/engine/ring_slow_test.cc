// SPDX-License-Identifier: Apache-2.0
// Dealt positions at length: long sequences, many late hops, many changes of the future.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/math/random.h"
#include "tests/engine/dealt_models.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

TEST(RingSlow, LongLengthsAreThoseOfOneDevice) {
  ExpectLengths({1000, 5000}, DealtSplits(),
                {"fp32", "preset=halved", "attention=dilated,segments=512:2048,dilation=1:4"});
}

class LateProbe final : public RingProbe {
 public:
  bool OnSend(const RingHop& /*hop*/) override {
    std::this_thread::sleep_for(std::chrono::microseconds(RandomBits(5, 1, draws_++) % 50'000));
    return true;
  }
  int64_t limit_ms() const override { return 600'000; }  // a busy machine is not a lost hop

 private:
  std::atomic<uint64_t> draws_{0};
};

TEST(RingSlow, TwoHundredRunsWithLateHopsHaveTheSameBits) {
  const TempDir scratch;
  const auto folder = WriteDealtModels(scratch.path()).front();
  for (const char* device : {"cpu:2", "cpu:4"}) {
    const auto backend = Cpu(device);
    const auto engine = OpenDealt(backend, folder, "sequence", "preset=halved");
    const std::string expected = HashOfLength(*engine, 33, 1);
    LateProbe probe;
    backend->ProbeRing(&probe);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(HashOfLength(*engine, 33, 1), expected) << i;
    backend->ProbeRing(nullptr);
  }
}

TEST(RingSlow, TenThousandChangesOfTheFutureChangeNoBit) {
  const TempDir scratch;
  const auto folder = WriteDealtModels(scratch.path()).front();
  constexpr int64_t kLength = 24;
  for (const char* config : {"fp32", "preset=halved"}) {
    const auto engine = OpenDealt(Cpu("cpu:4"), folder, "sequence", config);
    const int64_t vocab = engine->config().vocab_size;
    std::vector<float> logits(static_cast<size_t>(kLength * vocab));
    const auto run = [&](const std::vector<int32_t>& ids) {
      const auto sequence = engine->NewSequence(kLength);
      sequence->Append(ids);
      const StepItem item{sequence.get(), kLength, StepOutput::kAll};
      engine->Step({&item, 1});
      engine->ReadLogits(0, kLength, logits.data());
    };
    const std::vector<int32_t> ids = DealtPrompt(4, kLength, vocab);
    run(ids);
    const std::vector<float> before = logits;
    for (uint64_t i = 0; i < 5000; ++i) {
      const auto at = static_cast<int64_t>(RandomBits(6, 2, i) % kLength);
      std::vector<int32_t> other = ids;
      for (int64_t t = at; t < kLength; ++t) {
        other[static_cast<size_t>(t)] = static_cast<int32_t>(RandomBits(6, 3, i * kLength + static_cast<uint64_t>(t)) %
                                                             static_cast<uint64_t>(vocab));
      }
      run(other);
      ASSERT_EQ(std::memcmp(logits.data(), before.data(), static_cast<size_t>(at * vocab) * sizeof(float)), 0) << at;
    }
  }
}

}  // namespace
}  // namespace stoch::test
