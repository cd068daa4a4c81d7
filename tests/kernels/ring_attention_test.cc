// SPDX-License-Identifier: Apache-2.0
// RingAttention: every route gives the bits of Attention, and what breaks its contract is refused before any work.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>

#include "kernels/math/random.h"
#include "models/decoder/memory_plan.h"
#include "models/sc_model_config.h"
#include "tests/kernels/dilated_pairs.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/ring_gpus.h"
#include "tests/support/ring_route.h"

namespace stoch::test {
namespace {

constexpr BackendUnderTest kCpu{"cpu:8", "", 1};

// Windows of GPUs have all KV heads of short sequences, and one at a time of long ones.
const int kFewPositions = setenv("STOCH_TEST_RING_POSITIONS", "2600", 1);

struct Shape {
  int heads = 4, kv_heads = 2, head_dim = 24;
  int64_t positions = 192;  // of a sequence
  int sequences = 1;
  std::vector<DilatedPair> pairs = {};
  int64_t first_head = 0;
};

// Sequences over some devices of a backend, with a call that runs their next rows.
struct Ring {
  Ring(std::shared_ptr<Backend> devices, Precision precision, int count, const std::string& settings = "preset=halved",
       const Shape& its_shape = {})
      : stripes(count), shape(its_shape), backend(std::move(devices)) {
    DecoderConfig config;
    config.num_attention_heads = shape.heads;
    config.num_key_value_heads = shape.kv_heads;
    config.head_dim = shape.head_dim;
    const int64_t sequence_pages = (shape.positions + kKvPageTokens - 1) / kKvPageTokens;
    const auto num_pages = static_cast<int32_t>(sequence_pages * shape.sequences);
    spec = MakeKvCacheSpec(config, precision, ParseScModelConfig(std::vector<std::string>{settings}), 1, num_pages);
    spec.stripes = count;
    pages.resize(static_cast<size_t>(shape.sequences));
    done.resize(pages.size());
    for (int32_t page = 0; page < num_pages; ++page) {
      pages[static_cast<size_t>(page % shape.sequences)].push_back((page + 2) % num_pages);
    }
    const PassLimits limits{shape.positions * shape.sequences, shape.sequences + 1, sequence_pages};
    for (int i = 0; i < count; ++i) {
      const Device device = backend->devices()[static_cast<size_t>(i)];
      caches.push_back(backend->MakeKvCache(device, spec));
      passes.push_back(backend->MakePass(device, limits));
      call.parts.emplace_back();
      const int64_t bytes = backend->RingScratchBytes(spec, shape.heads, limits);
      memory.push_back(backend->Allocate(device, bytes));
      call.scratch.push_back(MakeView(memory.back().data(), DType::kU8, device, bytes));
      // NaN where a hop brought nothing.
      const std::vector<uint8_t> nothing(static_cast<size_t>(bytes), 0xff);
      backend->CopyFromHost(call.scratch.back(), nothing.data());
    }
    call.site = {0, "attention"};
  }
  explicit Ring(Precision precision, int count, const std::string& settings = "preset=halved")
      : Ring(OpenBackend("cpu:8", {.threads = 1, .cpu_variant = ""}, nullptr), precision, count, settings) {}

  // Numbers that depend on a row's sequence and position. rows: by sequence of the pass.
  TensorView Random(Device device, uint64_t stream, const std::vector<DealtRows>& dealt, const Stripe& stripe,
                    int64_t cols) {
    std::vector<float> values;
    for (size_t s = 0; s < dealt.size(); ++s) {
      for (int32_t row = 0; row < dealt[s].num_rows; ++row) {
        const int64_t at = running[s] * shape.positions + stripe.Absolute(dealt[s].first_local + row);
        for (int64_t i = 0; i < cols; ++i) {
          values.push_back(RandomWeight(3, stream, static_cast<uint64_t>(at * cols + i), 1.0F));
        }
      }
    }
    const auto rows = static_cast<int64_t>(values.size()) / cols;
    memory.push_back(backend->Allocate(device, std::max<int64_t>(1, rows * cols) * 4));
    const TensorView view = MakeView(memory.back().data(), DType::kF32, device, rows, cols);
    if (!values.empty()) backend->CopyFromHost(view, values.data());
    return view;
  }

  // Makes the call of so many rows of every sequence, from where it is on; 0: it is not in the pass.
  void Prepare(const std::vector<int32_t>& counts, int window) {
    layout = {};
    running.clear();
    for (size_t s = 0; s < counts.size(); ++s) {
      if (counts[s] == 0) continue;
      layout.sequences.push_back({static_cast<int32_t>(layout.ids.size()), counts[s], done[s], pages[s]});
      layout.ids.resize(layout.ids.size() + static_cast<size_t>(counts[s]), 0);
      running.push_back(static_cast<int64_t>(s));
    }
    for (int i = 0; i < stripes; ++i) {
      const auto at = static_cast<size_t>(i);
      const Device device = backend->devices()[at];
      const Stripe stripe{i, stripes};
      backend->UploadPass(*passes[at], layout);
      const std::vector<DealtRows> rows = DealPass(layout, stripe);
      AttentionCall& part = call.parts[at];
      part.site = call.site;
      part.q = Random(device, 1, rows, stripe, shape.heads * shape.head_dim);
      part.k = Random(device, 2, rows, stripe, shape.kv_heads * shape.head_dim);
      part.v = Random(device, 3, rows, stripe, shape.kv_heads * shape.head_dim);
      part.out = Random(device, 4, rows, stripe, shape.heads * shape.head_dim);
      part.rope = Random(device, 5, {{0, static_cast<int32_t>(shape.positions), 0}}, {}, shape.head_dim);
      part.cache = caches[at].get();
      part.pass = passes[at].get();
      part.num_heads = shape.heads;
      part.window = window;
      part.dilated = shape.pairs;
      part.first_head = shape.first_head;
    }
  }
  void Prepare(int32_t count, int window) { Prepare(std::vector<int32_t>{count}, window); }

  // Outputs in the order of the pass.
  std::vector<float> Run() {
    stripes > 1 ? backend->RingAttention(call) : backend->Attention(call.parts.front());
    const int64_t cols = int64_t{shape.heads} * shape.head_dim;
    std::vector<float> all(layout.ids.size() * static_cast<size_t>(cols));
    for (int i = 0; i < stripes; ++i) {
      const TensorView& from = call.parts[static_cast<size_t>(i)].out;
      std::vector<float> out(static_cast<size_t>(from.dim(0) * cols));
      if (!out.empty()) backend->CopyToHost(out.data(), from);
      const std::vector<DealtRows> dealt = DealPass(layout, {i, stripes});
      for (size_t s = 0; s < dealt.size(); ++s) {
        const PassLayout::Sequence& sequence = layout.sequences[s];
        for (int32_t row = 0; row < dealt[s].num_rows; ++row) {
          const int64_t position = Stripe{i, stripes}.Absolute(dealt[s].first_local + row);
          const int64_t to = sequence.first_row + position - sequence.start_position;
          std::copy_n(out.begin() + (dealt[s].first_row + row) * cols, cols, all.begin() + to * cols);
        }
      }
    }
    for (size_t s = 0; s < running.size(); ++s) {
      done[static_cast<size_t>(running[s])] += layout.sequences[s].num_rows;
    }
    return all;
  }
  // Prepares and runs passes of so many rows, one after the other.
  template <typename Rows>
  std::vector<std::vector<float>> RunAll(const std::vector<Rows>& passes_rows, int window) {
    std::vector<std::vector<float>> all;
    for (const Rows& rows : passes_rows) {
      Prepare(rows, window);
      all.push_back(Run());
    }
    return all;
  }

  int stripes;
  Shape shape;
  std::shared_ptr<Backend> backend;
  KvCacheSpec spec;
  std::vector<std::vector<int32_t>> pages;  // by sequence
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<std::unique_ptr<Pass>> passes;
  std::vector<Buffer> memory;
  PassLayout layout;
  RingAttentionCall call;
  std::vector<int64_t> running;  // sequences of the pass
  std::vector<int32_t> done;     // positions by sequence
};

class RingDevices : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(RingDevices, EveryRouteGivesTheBitsOfAttention) {
  STOCH_OPEN_RING_OR_SKIP(backend, GetParam());
  const bool is_cpu = backend->name() == "cpu";
  const std::vector<int32_t> passes = {21, 1, 90, 3, 30};
  for (const Precision precision : {Precision::kFp32, Precision::kSc}) {
    for (const int window : {0, 50}) {
      const auto expected = Ring(precision, 1).RunAll(passes, window);
      for (const int count : {2, 4, 8}) {
        for (const RingRoute route : {RingRoute::kRing, RingRoute::kQuery, RingRoute::kAuto}) {
          if (route == RingRoute::kQuery && !is_cpu && precision == Precision::kFp32) continue;
          Ring ring(backend, precision, count);
          ring.call.route = route;
          EXPECT_EQ(ring.RunAll(passes, window), expected)
              << count << " devices, window " << window << ", route " << static_cast<int>(route);
        }
      }
    }
  }
}

// Rows of sequences of different depths in a pass; heads that share a KV head by twos and by sixteen; heads that fast
// kernels are built for and others.
TEST_P(RingDevices, QueriesOfSeveralSequencesHaveTheBitsOfAttention) {
  STOCH_OPEN_RING_OR_SKIP(backend, GetParam());
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  const std::vector<std::vector<int32_t>> passes = {{300, 1, 0}, {1, 40, 5},  {1, 1, 1}, {8, 3, 1},
                                                    {0, 1, 8},   {1, 0, 300}, {3, 8, 2}, {1, 1, 1}};
  for (const Shape& shape : {Shape{8, 4, 64, 384, 3}, Shape{16, 1, 128, 384, 3}, Shape{4, 2, 24, 384, 3}}) {
    for (const int window : {0, 70}) {
      const auto expected = Ring(cpu, Precision::kSc, 1, "preset=halved", shape).RunAll(passes, window);
      for (const int count : {2, 4, 8}) {
        for (const RingRoute route : {RingRoute::kAuto, RingRoute::kQuery}) {
          Ring ring(backend, Precision::kSc, count, "preset=halved", shape);
          ring.call.route = route;
          EXPECT_EQ(ring.RunAll(passes, window), expected) << count << " devices, window " << window << ", head_dim "
                                                           << shape.head_dim << ", route " << static_cast<int>(route);
        }
      }
    }
  }
}

// Lengths around stripes, pages and lanes, prompts cut into passes, steps, sequences next to each other; pairs that
// overlap, that leave rows without a position, and segments that end within a stripe. Seen from a KV head's absolute
// query heads: some heads of a model, as a device has them that shares heads too.
TEST_P(RingDevices, DilatedAttentionIsThatOfOneDevice) {
  STOCH_OPEN_RING_OR_SKIP(backend, GetParam());
  const bool is_cpu = backend->name() == "cpu";
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  const std::vector<std::vector<int32_t>> passes = {{1, 15, 0}, {16, 1, 65}, {0, 17, 1},  {1, 1, 1},   {63, 8, 0},
                                                    {1, 0, 9},  {1, 1, 1},   {64, 90, 2}, {110, 3, 1}, {1, 1, 1}};
  const std::vector<std::vector<DilatedPair>> settings = {
      {{128, 1}, {256, 4}}, {{25, 3}, {150, 5}}, {{1, 1}}, {{16, 4}, {48, 2}, {200, 3}, {64, 1}}, {{100, 7}}};
  Shape shapes[] = {{8, 2, 64, 320, 3}, {4, 2, 24, 320, 3}, {6, 3, 128, 320, 3}};
  shapes[1].first_head = 5;
  shapes[2].first_head = 12;
  for (Shape& shape : shapes) {
    for (const std::vector<DilatedPair>& pairs : settings) {
      shape.pairs = pairs;
      for (const int window : {0, 70}) {
        const auto expected = Ring(cpu, Precision::kSc, 1, "preset=halved", shape).RunAll(passes, window);
        for (const int count : {2, 4, 8}) {
          for (const RingRoute route : {RingRoute::kAuto, RingRoute::kRing, RingRoute::kQuery}) {
            if (is_cpu && (route != RingRoute::kAuto || count == 4)) continue;  // there is no other
            Ring ring(backend, Precision::kSc, count, "preset=halved", shape);
            ring.call.route = route;
            EXPECT_EQ(ring.RunAll(passes, window), expected)
                << count << " devices, window " << window << ", head_dim " << shape.head_dim << ", pairs"
                << PairsText(pairs) << ", route " << static_cast<int>(route);
          }
        }
      }
    }
  }
  for (const Device& device : backend->devices()) backend->CheckFinite(device);
}

TEST_P(RingDevices, OneSegmentWithoutDilationIsDense) {
  STOCH_OPEN_RING_OR_SKIP(backend, GetParam());
  const std::vector<int32_t> passes = {21, 1, 90, 3, 30, 1};
  for (const int window : {0, 50}) {
    Shape shape;
    const auto dense = Ring(backend, Precision::kSc, 2, "preset=halved", shape).RunAll(passes, window);
    shape.pairs = {{shape.positions, 1}};
    EXPECT_EQ(Ring(backend, Precision::kSc, 2, "preset=halved", shape).RunAll(passes, window), dense) << window;
    shape.pairs = {{64, 1}};
    EXPECT_NE(Ring(backend, Precision::kSc, 2, "preset=halved", shape).RunAll(passes, window), dense) << window;
  }
}

// Bytes that arrive.
class ByteProbe final : public RingProbe {
 public:
  void OnArrive(const RingHop& /*hop*/, std::span<const uint8_t> arrived) override {
    bytes += static_cast<int64_t>(arrived.size());
  }
  std::atomic<int64_t> bytes{0};
};

// Only what some row's segments hold travels; deep contexts by both routes.
TEST_P(RingDevices, KeysBeforeTheSegmentsStayWhereTheyAre) {
  STOCH_OPEN_RING_OR_SKIP(backend, GetParam());
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  constexpr int64_t kDepth = 5000;
  const std::vector<DilatedPair> pairs = {{512, 1}, {2048, 4}};
  for (const Shape& dense : {Shape{4, 2, 64, 5120}, Shape{4, 1, 24, 5120}}) {
    const auto run = [&](const std::shared_ptr<Backend>& on, int count, ByteProbe* probe) {
      Ring ring(on, Precision::kSc, count, "preset=halved", dense);
      ring.RunAll(std::vector<int32_t>{kDepth}, 16);  // a narrow window fills the cache in little time
      ring.shape.pairs = pairs;
      on->ProbeRing(probe);
      auto all = ring.RunAll(std::vector<int32_t>{40}, 0);
      on->ProbeRing(nullptr);
      for (auto& rows : ring.RunAll(std::vector<int32_t>{1, 3, 8, 1}, 0)) all.push_back(std::move(rows));
      return all;
    };
    const auto expected = run(cpu, 1, nullptr);
    for (const int count : {2, 8}) {
      ByteProbe probe;
      EXPECT_EQ(run(backend, count, &probe), expected) << "head_dim " << dense.head_dim << ", " << count << " devices";
      // All stripes but a device's own come to it: codes of keys and values and two scales a position, of the pages from
      // 4096 on. CPUs keep values in blocks of 64 channels.
      const int64_t first_page = kDepth / 2048 * 2048 / kKvPageTokens;
      const int64_t pages = (kDepth + 40 + kKvPageTokens - 1) / kKvPageTokens - first_page;
      const int64_t channels = backend->name() == "cpu" ? 64 : dense.head_dim;
      EXPECT_EQ(probe.bytes.load(),
                (count - 1) * pages * kKvPageTokens * dense.kv_heads * (dense.head_dim + channels + 8));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RingDevices, testing::Values(kCpu, kRingGpus),
                         [](const auto& param) { return std::string(param.index == 0 ? "cpu" : "cuda"); });

// Heads that tiles are built for, long passes after short ones, one KV head and several, contexts of many pages.
TEST(RingAttention, GpusGiveTheBitsOfOneCpu) {
  STOCH_OPEN_RING_OR_SKIP(gpu, kRingGpus);
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  const Shape shapes[] = {{4, 2, 64, 1664}, {8, 1, 128, 1664}, {3, 3, 24, 1664}};
  for (const char* settings : {"fp32", "preset=halved", "preset=published,attention=per_token"}) {
    const Precision precision = std::string(settings) == "fp32" ? Precision::kFp32 : Precision::kSc;
    const std::string sc = precision == Precision::kSc ? settings : "preset=halved";
    for (const Shape& shape : shapes) {
      for (const int window : {0, 300}) {
        const std::vector<int32_t> passes = {1, 15, 257, 1, 64, 1000, 7, 300};
        const auto expected = Ring(cpu, precision, 1, sc, shape).RunAll(passes, window);
        for (const int count : {2, 4, 8}) {
          for (const RingRoute route : {RingRoute::kAuto, RingRoute::kQuery}) {
            if (route == RingRoute::kQuery && precision == Precision::kFp32) continue;
            Ring ring(gpu, precision, count, sc, shape);
            ring.call.route = route;
            EXPECT_EQ(ring.RunAll(passes, window), expected)
                << settings << ", head_dim " << shape.head_dim << ", " << count << " devices, window " << window
                << ", route " << static_cast<int>(route);
          }
        }
      }
    }
  }
  for (const Device& device : gpu->devices()) gpu->CheckFinite(device);
}

// Contexts that many blocks share, and whose lanes take several turns; a narrow window fills the cache in little time.
TEST(RingAttention, QueriesToDeepContextsOfGpusHaveTheBitsOfOneCpu) {
  STOCH_OPEN_RING_OR_SKIP(gpu, kRingGpus);
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  for (const Shape& shape : {Shape{4, 2, 64, 20032}, Shape{4, 2, 24, 20032}}) {
    const auto run = [&](const std::shared_ptr<Backend>& backend, int count) {
      Ring ring(backend, Precision::kSc, count, "preset=halved", shape);
      ring.RunAll(std::vector<int32_t>{20000}, 16);
      return ring.RunAll(std::vector<int32_t>{1, 3, 8, 1}, 0);
    };
    const auto expected = run(cpu, 1);
    for (const int count : {2, 8}) {
      EXPECT_EQ(run(gpu, count), expected) << "head_dim " << shape.head_dim << ", " << count << " devices";
    }
  }
}

// ------------------------------------------------------------------------------------------- hops of two GPUs ----

class RingHopRoute : public testing::TestWithParam<const char*> {
 protected:
  const ScopedVariable route_{"STOCH_RING_ROUTE", GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Routes, RingHopRoute, testing::ValuesIn(kHopRoutes),
                         [](const auto& param) { return std::string("cuda_") + param.param; });

TEST_P(RingHopRoute, GivesTheBitsOfAttention) {
  STOCH_OPEN_RING_OR_SKIP(gpu, kRingGpus);
  STOCH_NEED_HOP_ROUTE(gpu, GetParam());
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  for (const Precision precision : {Precision::kFp32, Precision::kSc}) {
    for (const Shape& shape : {Shape{}, Shape{4, 2, 64, 1664}, Shape{8, 8, 128, 1664}}) {
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

// What waits for a hop by NCCL waits on the GPU, and only aborting the communicators ends it.
TEST_P(RingHopRoute, GivesUpLostHopsAndGoesOn) {
  STOCH_OPEN_RING_OR_SKIP(gpu, kRingGpus);
  STOCH_NEED_HOP_ROUTE(gpu, GetParam());
  const Shape shape{8, 8, 128, 1664};  // of several rounds
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
  STOCH_OPEN_RING_OR_SKIP(gpu, kRingGpus);
  const auto run_as = [](const char* route) {
    const ScopedVariable asked("STOCH_RING_ROUTE", route);
    Ring ring(OpenBackend("cuda:0,1,2,3,4,5,6,7", {}, nullptr), Precision::kSc, 8);
    ring.Prepare(20, 0);
    ring.Run();
  };
  ExpectInvalid([&] { run_as("nvlink"); }, {"STOCH_RING_ROUTE=nvlink: expected peer, nccl or host"});
  if (gpu->links().front().detail == "the same GPU") {
    ExpectInvalid([&] { run_as("nccl"); }, {"STOCH_RING_ROUTE=nccl: NCCL takes no GPU twice"});
  }
  const ScopedVariable off("NCCL_P2P_DISABLE", "1");
  ExpectInvalid([&] { run_as("peer"); }, {"STOCH_RING_ROUTE=peer: these GPUs do not reach each other's memory"});
}

TEST(RingAttention, GpusRefuseWhatTheyDoNotHave) {
  STOCH_OPEN_RING_OR_SKIP(gpu, kRingGpus);
  Ring query(gpu, Precision::kFp32, 2);
  query.call.route = RingRoute::kQuery;
  query.Prepare(20, 0);
  ExpectInvalid([&] { query.Run(); }, {"layer 0 attention", "exact queries do not go to the keys of GPUs"});
  Shape dilated;
  dilated.pairs = {{64, 2}};
  Ring exact(gpu, Precision::kFp32, 2, "preset=halved", dilated);
  exact.Prepare(20, 0);
  ExpectInvalid([&] { exact.Run(); }, {"layer 0 attention", "dilated attention in a cache of another mode"});
  Ring small(gpu, Precision::kSc, 2);
  small.Prepare(20, 0);
  small.call.scratch[1].shape[0] = 64;
  ExpectInvalid([&] { small.Run(); }, {"scratch of 64 bytes on cuda:1"});
  ExpectInvalid([&] { Ring(gpu, Precision::kSc, 2, "av.arith=int8"); }, {"--split sequence", "--device cpu:2"});
}

TEST(RingAttention, RefusesWhatBreaksItsContract) {
  const auto refused = [](const auto& spoil, std::initializer_list<std::string_view> parts) {
    Ring ring(Precision::kSc, 2);
    ring.Prepare(20, 0);
    spoil(ring);
    ExpectInvalid([&] { ring.Run(); }, parts);
  };
  refused([](Ring& ring) { ring.call.parts.push_back(ring.call.parts[0]); },
          {"layer 0 attention", "a ring of 3 devices"});
  refused([](Ring& ring) { ring.call.scratch.pop_back(); }, {"scratch on 1"});
  refused([](Ring& ring) { ring.call.parts[1].cache = nullptr; }, {"needs a cache and a pass"});
  refused([](Ring& ring) { ring.call.parts[1] = ring.call.parts[0]; }, {"cpu:0 takes part twice"});
  refused([](Ring& ring) { ring.call.parts[1].window = 3; }, {"the cache on cpu:1", "another shape"});
  refused([](Ring& ring) { ring.call.parts[0].q = Slice(ring.call.parts[0].q, 0, 0, 3); }, {"q is F32[3, 96]"});
  refused([](Ring& ring) { ring.call.scratch[1].shape[0] = 64; }, {"scratch of 64 bytes"});
  refused([](Ring& ring) { ring.call.parts[0].rope = Slice(ring.call.parts[0].rope, 0, 0, 19); },
          {"ends at position 20", "the rope table has 19"});
  refused(
      [](Ring& ring) {
        PassLayout other = ring.layout;
        other.ids.pop_back();
        other.sequences[0].num_rows = 19;
        ring.backend->UploadPass(*ring.passes[1], other);
      },
      {"the passes of a ring are not the same"});

  Ring dealt(Precision::kSc, 2);
  dealt.Prepare(20, 0);
  ExpectInvalid([&] { dealt.backend->Attention(dealt.call.parts[0]); },
                {"positions of one of 2 devices", "RingAttention"});
  Ring whole(Precision::kSc, 1);
  whole.Prepare(20, 0);
  dealt.call.parts[0] = whole.call.parts[0];
  ExpectInvalid([&] { dealt.Run(); }, {"the cache on cpu:0 has positions of one of 1 devices, expected of 2"});
  Ring windows(Precision::kSc, 2, "attention=per_row");
  windows.Prepare(20, 0);
  ExpectInvalid([&] { windows.Run(); }, {"per_head and per_row attention"});
  Ring dilated(Precision::kSc, 2);
  dilated.shape.pairs = {{64, 2}};
  dilated.call.route = RingRoute::kQuery;
  dilated.Prepare(20, 0);
  ExpectInvalid([&] { dilated.Run(); }, {"queries cannot go to the keys", "dilated"});
  dilated.call.route = RingRoute::kAuto;
  dilated.call.parts[1].first_head = 1;
  ExpectInvalid([&] { dilated.Run(); }, {"the cache on cpu:1", "another shape"});
  Ring integers(Precision::kSc, 2, "av.arith=int8");
  integers.call.route = RingRoute::kQuery;
  integers.Prepare(20, 0);
  ExpectInvalid([&] { integers.Run(); }, {"queries cannot go to the keys"});
  KvCacheSpec spec = dealt.spec;
  spec.stripes = 3;
  ExpectInvalid([&] { dealt.backend->MakeKvCache({DeviceKind::kCpu, 0}, spec); }, {"stripes must be 1, 2, 4 or 8"});
}

}  // namespace
}  // namespace stoch::test
