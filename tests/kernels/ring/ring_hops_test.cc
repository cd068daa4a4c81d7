// SPDX-License-Identifier: Apache-2.0
// Hops of RingAttention by each route that keys and values may take between GPUs: the same bits, and what is lost is given up.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "tests/kernels/ring/ring_sequences.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/ring_route.h"
#include "tests/support/scoped_variables.h"

namespace stoch::test {
namespace {

class RingHopRoute : public testing::TestWithParam<const char*> {
 protected:
  const ScopedVariable route_{"STOCH_RING_ROUTE", GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Routes, RingHopRoute, testing::ValuesIn(kHopRoutes),
                         [](const auto& param) { return std::string("cuda_") + param.param; });

TEST_P(RingHopRoute, GivesTheBitsOfAttention) {
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
  STOCH_NEED_HOP_ROUTE(gpu, GetParam());
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  for (const Precision precision : {Precision::kFp32, Precision::kSc}) {
    for (const RingShape& shape : {RingShape{}, RingShape{4, 2, 64, 1664}, RingShape{8, 8, 128, 1664}}) {
      const std::vector<int32_t> passes = shape.positions < 200 ? std::vector<int32_t>{21, 1, 90, 3, 30}
                                                                : std::vector<int32_t>{1, 15, 257, 1, 1000, 7, 300};
      const auto expected = Ring(cpu, precision, 1, "preset=halved", shape).RunAll(passes, 0);
      Ring ring(gpu, precision, 2, "preset=halved", shape);
      ring.call.route = RingRoute::kRing;
      EXPECT_EQ(ring.RunAll(passes, 0), expected) << "head_dim " << shape.head_dim;
    }
  }
  for (const Device& device : gpu->devices()) gpu->CheckFinite(device);
}

// Refuses what one device sends in one hop, once.
class LosingProbe final : public RingProbe {
 public:
  LosingProbe(int from, int64_t kv_head) : from_(from), kv_head_(kv_head) {}
  bool OnSend(const RingHop& hop) override {
    if (lost || hop.from.index != from_ || hop.kv_head != kv_head_) return true;
    lost = true;
    return false;
  }
  int64_t limit_ms() const override { return 200; }

  bool lost = false;

 private:
  int from_;
  int64_t kv_head_;
};

TEST_P(RingHopRoute, GivesUpLostHopsAndGoesOn) {
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
  STOCH_NEED_HOP_ROUTE(gpu, GetParam());
  const RingShape shape{8, 8, 128, 1664};  // of several rounds
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  const auto expected = Ring(cpu, Precision::kSc, 1, "preset=halved", shape).RunAll(std::vector<int32_t>{1000, 300}, 0);
  Ring ring(gpu, Precision::kSc, 2, "preset=halved", shape);
  ring.call.route = RingRoute::kRing;
  for (const std::vector<float>& output : expected) {
    ring.Prepare(ring.done[0] == 0 ? 1000 : 300, 0);
    for (const auto& [from, kv_head] : {std::pair{0, 0}, {1, 0}, {0, 7}, {1, 5}}) {
      LosingProbe probe(from, kv_head);
      gpu->ProbeRing(&probe);
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_THROW(ring.Run(), LostHop) << "from " << from << ", KV head " << kv_head;
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(RingProbe::kRingLimitMs));
      EXPECT_TRUE(probe.lost);
      gpu->ProbeRing(nullptr);
    }
    EXPECT_EQ(ring.Run(), output);
  }
  for (const Device& device : gpu->devices()) gpu->CheckFinite(device);
}

TEST(RingAttention, HopsThatTheGpusDoNotHaveAreRefused) {
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
  const auto run_as = [](const char* route) {
    const ScopedVariable asked("STOCH_RING_ROUTE", route);
    Ring ring(OpenBackend("cuda:0,1,2,3,4,5,6,7", {}, nullptr), Precision::kSc, 8);
    ring.Prepare(20, 0);
    ring.Run();
  };
  ExpectInvalid([&] { run_as("nvlink"); }, {"STOCH_RING_ROUTE=nvlink: expected peer or host"});
  const ScopedVariable off("NCCL_P2P_DISABLE", "1");
  ExpectInvalid([&] { run_as("peer"); }, {"STOCH_RING_ROUTE=peer: these GPUs do not reach each other's memory"});
}

}  // namespace
}  // namespace stoch::test
