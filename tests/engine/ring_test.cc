// SPDX-License-Identifier: Apache-2.0
// Sequences over dealt positions: lengths around every edge, hops that are late or lost, memory, pages that are shared.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <ostream>
#include <string_view>
#include <thread>
#include <tuple>

#include "engine/placement.h"
#include "kernels/math/random.h"
#include "tests/engine/dealt_models.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/ring_gpus.h"
#include "tests/support/ring_route.h"
#include "tests/support/scoped_variables.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

// Linears of several devices on one GPU must not run side by side.
const int kSharedStream = setenv("STOCH_TEST_SHARED_STREAM", "1", 1);

TEST(Ring, ShortLengthsAreThoseOfOneDevice) {
  ExpectLengths({1, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65}, DealtSplits(), {"fp32", "preset=halved"});
}

TEST(Ring, RowsOfEveryStripeAreDividedToo) {
  ExpectLengths({1, 17, 65}, {{"cpu:4", "sequence:2,row:2"}, {"cpu:6", "sequence:2,row:3"}}, {"fp32", "preset=halved"});
}

TEST(Ring, LengthsAcrossLanesAndPassesAreThoseOfOneDevice) {
  ExpectLengths({255, 256, 257}, DealtSplits(), {"fp32", "preset=halved"});
}

const std::vector<std::string> kDilated = {"attention=dilated,segments=16:64,dilation=1:4",
                                           "attention=dilated,segments=25:300,dilation=3:5"};

TEST(Ring, DilatedAttentionIsThatOfOneDevice) {
  ExpectLengths({1, 15, 17, 64, 257}, DealtSplits(), kDilated);
  ExpectLengths({1, 17, 65}, {{"cpu:4", "sequence:2,row:2"}}, kDilated);
}

// ------------------------------------------------------------------------------------------------------- GPUs ----

const Splits kGpuSplits = {{"cuda:0,1", "sequence"}, {"cuda:0,1,2,3", "sequence"}};

TEST(Ring, GpusHaveTheBitsOfOneDevice) {
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
  ExpectLengths({1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000}, kGpuSplits, {"fp32", "preset=halved"});
  Splits more = {{"cuda:0,1,2,3,4,5,6,7", "sequence"}};
  // Without peers rows go through NCCL, which takes no GPU twice.
  const char* off = std::getenv("NCCL_P2P_DISABLE");
  if (off == nullptr || std::string_view(off) != "1") more.emplace_back("cuda:0,1,2,3", "sequence:2,row:2");
  ExpectLengths({1, 17, 65}, more, {"fp32", "preset=halved"});
}

TEST(Ring, DilatedAttentionOfGpusIsThatOfOneDevice) {
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
  ExpectLengths({1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000}, kGpuSplits, kDilated);
  Splits more = {{"cuda:0,1,2,3,4,5,6,7", "sequence"}};
  const char* off = std::getenv("NCCL_P2P_DISABLE");
  if (off == nullptr || std::string_view(off) != "1") more.emplace_back("cuda:0,1,2,3", "sequence:2,row:2");
  ExpectLengths({1, 17, 65}, more, kDilated);
}

TEST(Ring, GpusThatDoNotReachEachOtherHaveTheBitsOfOneDevice) {
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
  const ScopedVariable off("NCCL_P2P_DISABLE", "1");
  ExpectLengths({1, 17, 65, 257}, kGpuSplits, {"fp32", "preset=halved"});
  ExpectLengths({1, 17, 257}, kGpuSplits, {kDilated[1]});
}

class RingHopRoute : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Routes, RingHopRoute, testing::ValuesIn(kHopRoutes),
                         [](const auto& param) { return std::string("cuda_") + param.param; });

TEST_P(RingHopRoute, GivesTheBitsOfOneDevice) {
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
  STOCH_NEED_HOP_ROUTE(gpu, GetParam());
  const ScopedVariable route("STOCH_RING_ROUTE", GetParam());
  ExpectLengths({1, 17, 65, 257, 1000}, {{"cuda:0,1", "sequence"}}, {"fp32", "preset=halved"});
}

// ------------------------------------------------------------------------------------------------------- hops ----

// Devices 0 .. count - 1 of a kind.
std::shared_ptr<Backend> Devices(const std::string& kind, int count) {
  if (kind == "cpu") return Cpu("cpu:" + std::to_string(count));
  std::string names = "cuda:0";
  for (int i = 1; i < count; ++i) names += ',' + std::to_string(i);
  return OpenBackend(names, {}, nullptr);
}

// A kind of device and, where tests choose it, the route of hops.
struct HopsUnderTest {
  const char* name;
  const char* kind;
  const char* route;  // "": the backend's choice

  friend std::ostream& operator<<(std::ostream& out, const HopsUnderTest& hops) { return out << hops.name; }
};

class RingHops : public testing::TestWithParam<HopsUnderTest> {
 protected:
  void SetUp() override {
    if (std::string_view(GetParam().kind) == "cpu") return;
    STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
    if (*GetParam().route == '\0') return;
    STOCH_NEED_HOP_ROUTE(gpu, GetParam().route);
    route_.emplace("STOCH_RING_ROUTE", GetParam().route);
  }

 private:
  std::optional<ScopedVariable> route_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, RingHops,
                         testing::Values(HopsUnderTest{"cpu", "cpu", ""}, HopsUnderTest{"cuda", "cuda", ""},
                                         HopsUnderTest{"cuda_host", "cuda", "host"}),
                         [](const auto& param) { return std::string(param.param.name); });

// Counts hops, remembers what went by, and is late or loses some.
class Probe final : public RingProbe {
 public:
  std::function<bool(const RingHop&)> on_send = [](const RingHop&) { return true; };
  int64_t limit = kRingLimitMs;

  bool OnSend(const RingHop& hop) override { return on_send(hop); }
  void OnArrive(const RingHop& hop, std::span<const uint8_t> bytes) override {
    const std::lock_guard lock(mutex_);
    ++arrived;
    const auto key = std::tuple(pass.load(), hop.site.layer, hop.sequence, hop.kv_head, hop.origin);
    const auto [known, is_new] = blocks.try_emplace(key, bytes.begin(), bytes.end());
    if (!is_new && !std::equal(bytes.begin(), bytes.end(), known->second.begin(), known->second.end())) ++changed;
    EXPECT_EQ(hop.hop <= hop.hops, true);
  }
  int64_t limit_ms() const override { return limit; }

  std::atomic<int> pass{0};
  int64_t arrived = 0;
  int64_t changed = 0;
  std::map<std::tuple<int, int, int64_t, int64_t, int>, std::vector<uint8_t>> blocks;

 private:
  std::mutex mutex_;
};

TEST_P(RingHops, EveryBlockMakesOneHopLessThanThereAreDevicesAndStaysAsItIs) {
  const TempDir scratch;
  const auto folder = WriteDealtModels(scratch.path()).front();
  for (const int count : {2, 4, 8}) {
    const auto backend = Devices(GetParam().kind, count);
    const auto engine = OpenDealt(backend, folder, "sequence", "preset=halved");
    Probe probe;
    ASSERT_TRUE(backend->ProbeRing(&probe));
    HashOfLength(*engine, 100, 2);  // a prompt by the ring; steps by queries, which are no blocks
    EXPECT_EQ(probe.blocks.size(), static_cast<size_t>(count * 2 * 2)) << "layers and KV heads";
    EXPECT_EQ(probe.arrived, static_cast<int64_t>(probe.blocks.size()) * (count - 1));
    EXPECT_EQ(probe.changed, 0);
    backend->ProbeRing(nullptr);
  }
}

TEST_P(RingHops, LateOnesChangeNoBit) {
  const TempDir scratch;
  const auto folder = WriteDealtModels(scratch.path()).front();
  constexpr int count = 4;
  const auto backend = Devices(GetParam().kind, count);
  const auto engine = OpenDealt(backend, folder, "sequence", "preset=halved");
  const std::string expected = HashOfLength(*engine, 33, 1);
  Probe probe;
  std::atomic<uint64_t> draws{0};
  probe.limit = 60'000;  // a busy machine is not a lost hop
  probe.on_send = [&](const RingHop&) {
    std::this_thread::sleep_for(std::chrono::microseconds(RandomBits(5, 1, draws++) % 3000));
    return true;
  };
  backend->ProbeRing(&probe);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(HashOfLength(*engine, 33, 1), expected);
  EXPECT_GE(draws.load(), 20u * 2 * 2 * static_cast<uint64_t>(count * (count - 1))) << "layers, KV heads, hops";
  backend->ProbeRing(nullptr);
}

TEST_P(RingHops, ALostOneIsATypedErrorAndTheNextRequestWorks) {
  const TempDir scratch;
  const auto folder = WriteDealtModels(scratch.path()).front();
  for (const int count : {2, 8}) {
    const auto backend = Devices(GetParam().kind, count);
    const auto engine = OpenDealt(backend, folder, "sequence", "preset=halved");
    const std::string expected = HashOfLength(*engine, 40, 1);
    Probe probe;
    std::atomic<bool> lose{true};
    probe.limit = 200;
    probe.on_send = [&](const RingHop& hop) {
      return !(hop.site.layer == 1 && hop.kv_head == 1 && hop.hop == 1 && hop.from.index == 1 && lose.exchange(false));
    };
    backend->ProbeRing(&probe);
    const auto sequence = engine->NewSequence(64);
    sequence->Append(DealtPrompt(3, 40, engine->config().vocab_size));
    const StepItem item{sequence.get(), 40, StepOutput::kLast};
    try {
      engine->Step({&item, 1});
      FAIL() << "the hop arrived";
    } catch (const LostHop& lost) {
      const std::string message = lost.what();
      const std::string kind = GetParam().kind;
      EXPECT_NE(message.find("layer 1 attention: hop "), std::string::npos) << message;
      EXPECT_NE(message.find(std::string(" from ") + kind + ':'), std::string::npos) << message;
      EXPECT_NE(message.find("within 200 ms"), std::string::npos) << message;
      if (count == 2) {
        EXPECT_EQ(message,
                  "layer 1 attention: hop 1 of 1 from " + kind + ":1 to " + kind + ":0 did not arrive within 200 ms");
      }
    }
    probe.limit = 60'000;
    EXPECT_EQ(sequence->computed(), 0);
    EXPECT_EQ(engine->Step({&item, 1}), 1) << "the same sequence again";
    EXPECT_EQ(HashOfLength(*engine, 40, 1), expected);
    backend->ProbeRing(nullptr);
  }
}

// Steps of generation exchange small results five times a layer.
TEST(Ring, GpusThatLoseAnExchangeOfAStepSaySoAndTheStepCanBeRepeated) {
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
  const TempDir scratch;
  const auto folder = WriteDealtModels(scratch.path()).front();
  for (const int count : {2, 8}) {
    const auto backend = Devices("cuda", count);
    const auto engine = OpenDealt(backend, folder, "sequence", "preset=halved");
    const auto vocab = static_cast<size_t>(engine->config().vocab_size);
    const auto prompted = [&] {
      auto sequence = engine->NewSequence(64);
      sequence->Append(DealtPrompt(3, 40, engine->config().vocab_size));
      const StepItem item{sequence.get(), 40, StepOutput::kLast};
      engine->Step({&item, 1});
      const int32_t next = 7;
      sequence->Append({&next, 1});
      return sequence;
    };
    const auto step = [&](Sequence& sequence) {
      const StepItem item{&sequence, 1, StepOutput::kLast};
      engine->Step({&item, 1});
      std::vector<float> logits(vocab);
      engine->ReadLogits(0, 1, logits.data());
      return logits;
    };
    const std::vector<float> expected = step(*prompted());
    for (const int lost : {1, 3, 5}) {
      const auto sequence = prompted();
      Probe probe;
      std::atomic<bool> lose{true};
      probe.limit = 100;
      probe.on_send = [&](const RingHop& hop) {
        return !(hop.site.layer == 1 && hop.hop == lost && hop.from.index == 1 && lose.exchange(false));
      };
      backend->ProbeRing(&probe);
      try {
        step(*sequence);
        FAIL() << "exchange " << lost << " arrived";
      } catch (const LostHop& hop) {
        EXPECT_EQ(std::string(hop.what()), "layer 1 attention: hop " + std::to_string(lost) +
                                               " of 5 from cuda:1 to cuda:0 did not arrive within 100 ms");
      }
      probe.limit = 60'000;
      EXPECT_EQ(sequence->computed(), 40);
      EXPECT_EQ(step(*sequence), expected) << "the same step again";
      backend->ProbeRing(nullptr);
    }
  }
}

// ------------------------------------------------------------------------------------------------------ rules ----

TEST(Ring, FutureTokensChangeNoBitOfEarlierRows) {
  const TempDir scratch;
  for (const std::filesystem::path& folder : WriteDealtModels(scratch.path())) {
    for (const char* config : {"fp32", "preset=halved"}) {
      const auto engine = OpenDealt(Cpu("cpu:4"), folder, "sequence", config);
      const int64_t vocab = engine->config().vocab_size;
      constexpr int64_t kLength = 70;
      const auto run = [&](const std::vector<int32_t>& ids) {
        const auto sequence = engine->NewSequence(kLength);
        sequence->Append(ids);
        const StepItem item{sequence.get(), kLength, StepOutput::kAll};
        engine->Step({&item, 1});
        std::vector<float> logits(static_cast<size_t>(kLength * vocab));
        engine->ReadLogits(0, kLength, logits.data());
        return logits;
      };
      const std::vector<int32_t> ids = DealtPrompt(4, kLength, vocab);
      const std::vector<float> before = run(ids);
      for (int64_t i = 0; i < 25; ++i) {
        const auto at = static_cast<int64_t>(RandomBits(6, 2, static_cast<uint64_t>(i)) % kLength);
        std::vector<int32_t> other = ids;
        int32_t& changed = other[static_cast<size_t>(at)];
        changed = static_cast<int32_t>((changed + 1) % vocab);
        const std::vector<float> after = run(other);
        EXPECT_EQ(std::memcmp(after.data(), before.data(), static_cast<size_t>(at * vocab) * sizeof(float)), 0) << at;
        EXPECT_NE(std::memcmp(after.data(), before.data(), after.size() * sizeof(float)), 0) << "nothing depends on it";
      }
    }
  }
}

TEST(Ring, SequencesShareThePagesOfAPrefix) {
  const TempDir scratch;
  const auto folder = WriteDealtModels(scratch.path()).front();
  const auto engine = OpenDealt(Cpu("cpu:4"), folder, "sequence", "preset=halved");
  const auto alone = OpenDealt(Cpu("cpu"), folder, "layer", "preset=halved");
  std::vector<int32_t> ids = DealtPrompt(9, 200, engine->config().vocab_size);
  const auto first = engine->NewSequence(200);
  first->Append(ids);
  const StepItem whole{first.get(), 200, StepOutput::kNone};
  engine->Step({&whole, 1});
  ids.resize(150);
  ids.push_back(5);
  const auto logits_of = [](Engine& of, Sequence& sequence) {
    const StepItem item{&sequence, sequence.pending(), StepOutput::kLast};
    of.Step({&item, 1});
    std::vector<float> logits(static_cast<size_t>(of.config().vocab_size));
    of.ReadLogits(0, 1, logits.data());
    return logits;
  };
  const std::vector<KvPage> pages = {first->page(0), first->page(1)};
  const auto second = engine->NewSequence(160, ids, pages);
  EXPECT_EQ(second->computed(), 128);
  const auto expected = alone->NewSequence(160, ids, {});
  EXPECT_EQ(logits_of(*engine, *second), logits_of(*alone, *expected));
}

TEST(Ring, ResidualStreamsComeInTheOrderOfThePass) {
  const TempDir scratch;
  const auto folder = WriteDealtModels(scratch.path()).front();
  const auto hidden_of = [&](const char* device, const char* split, int layers) {
    const auto engine = OpenDealt(Cpu(device), folder, split, "fp32");
    const auto sequence = engine->NewSequence(50);
    sequence->Append(DealtPrompt(2, 50, engine->config().vocab_size));
    std::vector<float> hidden(static_cast<size_t>(50 * engine->config().hidden_size));
    const StepItem item{sequence.get(), 50, StepOutput::kNone};
    engine->StepWithHidden({&item, 1}, layers, hidden);
    return hidden;
  };
  for (const int layers : {0, 2}) {
    EXPECT_EQ(hidden_of("cpu:4", "sequence", layers), hidden_of("cpu", "layer", layers)) << layers;
  }
}

// ----------------------------------------------------------------------------------------------------- memory ----

TEST(Ring, PlansAreWhatLoadingTakesAndKvIsDivided) {
  const TempDir scratch;
  for (const std::filesystem::path& folder : WriteDealtModels(scratch.path())) {
    for (const std::string& config :
         {std::string("fp32"), std::string("preset=halved"), std::string("lm_head=1"), kDilated[0]}) {
      for (const auto& [device, stripes] : {std::pair{"cpu:2", 2}, {"cpu:8", 8}, {"cpu:4", 2}}) {
        const auto backend = Cpu(device);
        const std::string split = "sequence:" + std::to_string(stripes) +
                                  (backend->devices().size() > static_cast<size_t>(stripes) ? ",row:2" : "");
        const auto engine = OpenDealt(backend, folder, split, config);
        const ModelFiles files = OpenModelFiles(folder.string());
        const EngineOptions& options = engine->options();
        const MemoryPlan whole = PlanMemory(files, options.precision, options.sc, engine->shape(), *backend);
        MemoryBytes sum;
        for (const MemoryPlan& plan : PlanShards(files, options, *backend, stripes)) {
          EXPECT_LE(plan.total.kv_cache * stripes, whole.total.kv_cache * 102 / 100);
          sum += plan.total;
        }
        EXPECT_EQ(sum.workspace, engine->model().workspace_bytes()) << split;
        EXPECT_EQ(sum.kv_cache, engine->model().kv_cache_bytes()) << split;
      }
    }
  }
}

}  // namespace
}  // namespace stoch::test
