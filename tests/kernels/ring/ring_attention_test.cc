// SPDX-License-Identifier: Apache-2.0
// RingAttention: every route gives the bits of Attention, and what breaks its contract is refused before any work.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "tests/kernels/dilated_pairs.h"
#include "tests/kernels/ring/ring_sequences.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/scoped_variables.h"

namespace stoch::test {
namespace {

constexpr BackendUnderTest kCpu{"cpu:8", "", 1};

using Shape = RingShape;

class RingDevices : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(RingDevices, EveryRouteGivesTheBitsOfAttention) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
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
  STOCH_OPEN_OR_SKIP(backend, GetParam());
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
  STOCH_OPEN_OR_SKIP(backend, GetParam());
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
  STOCH_OPEN_OR_SKIP(backend, GetParam());
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
  STOCH_OPEN_OR_SKIP(backend, GetParam());
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

// exp in pieces, far from Exp.
NonlinearTable PiecesOfExp() {
  NonlinearTable table;
  table.function = NonlinearFunction::kExp;
  for (int i = 0; i < 21; ++i) {
    table.cuts.push_back(-9.0F + 9.0F * static_cast<float>(i) / 21);
    table.values.push_back(std::exp(table.cuts.back()));
    table.slopes.push_back(0.1F * table.values.back());
  }
  table.in_bits = 9;
  table.out_bits = 13;
  return table;
}

// T(a, b) = a * b, but for small errors where neither is 0.
ScOperatorPtr NearlyExact() {
  auto table = std::make_shared<MultiplierTable>();
  for (int a = -128; a < 128; ++a) {
    for (int b = -128; b < 128; ++b) table->entries.push_back(a * b + (a == 0 || b == 0 ? 0 : (a + b) % 3));
  }
  ScConfig config;
  config.gate = ScGate::kTable;
  config.table = "nearly";
  config.multiplier = MultiplierTablePtr{std::move(table)};
  return MakeScOperator(config);
}

// Stream lengths by amax of a row, up to `hi`.
ScExtrasPtr LengthsBelow(const ScOperatorPtr& op, std::vector<int> levels, float hi) {
  auto rule = std::make_shared<ScLengthRule>();
  rule->hi = hi;
  rule->thresholds = {0.5F, 0.25F};
  rule->levels = std::move(levels);
  auto extras = std::make_shared<ScExtras>();
  extras->op = "test_proj";
  extras->by_length = MakeScOperators(op->config, rule->Lengths());
  extras->lengths = std::move(rule);
  return extras;
}

struct ResearchCase {
  const char* name;
  const char* settings = "preset=halved";
  std::function<void(Shape*)> edit = {};
  Precision precision = Precision::kSc;
  bool has_window = true;  // takes a sliding window
};

std::vector<ResearchCase> ResearchCases() {
  static const NonlinearTable kExp = PiecesOfExp();
  const auto lengths = [](KvCacheSpec* spec) {
    spec->layers = {
        {spec->qk, spec->av, LengthsBelow(spec->qk, {128, 64, 24}, 6), LengthsBelow(spec->av, {128, 40, 8}, 1)}};
  };
  const auto table = [](KvCacheSpec* spec) { spec->qk = spec->av = NearlyExact(); };
  return {
      {"integers of values", "av.arith=int8"},
      {"integers", "qk.arith=int8,av.arith=int4"},
      {"E4M3", "qk.arith=fp8_e4m3,av.arith=fp8_e4m3"},
      {"MXINT8 of keys", "qk.arith=mxint8"},
      {"registers", "qk.acc_bits=9,qk.acc_group=8,av.acc_bits=10,av.acc_group=8"},
      {"adders of gates", "qk.adder=or,qk.adder_group=4,av.adder=apc,av.adder_group=6"},
      {"a table", "preset=halved", [&](Shape* shape) { shape->edit = table; }, Precision::kSc, false},
      {"a dilated table", "preset=halved",
       [&](Shape* shape) {
         shape->edit = table;
         shape->pairs = {{128, 1}, {256, 4}};
       },
       Precision::kSc, false},
      {"lengths", "preset=halved", [&](Shape* shape) { shape->edit = lengths; }},
      {"factors", "preset=halved", [](Shape* shape) { shape->smooths = true; }},
      {"lengths and factors", "preset=halved",
       [&](Shape* shape) {
         shape->edit = lengths;
         shape->smooths = true;
       }},
      {"a table of exp", "preset=halved", [](Shape* shape) { shape->exp_table = &kExp; }},
      {"an exact table of exp", "preset=halved", [](Shape* shape) { shape->exp_table = &kExp; }, Precision::kFp32},
      {"a cap", "preset=halved", [](Shape* shape) { shape->score_cap = 3; }},
      {"an exact cap", "preset=halved", [](Shape* shape) { shape->score_cap = 3; }, Precision::kFp32},
  };
}

// Settings that no fast kernel takes, of steps and of prompts, of sequences next to each other, and with windows of all KV
// heads or of one at a time.
TEST_P(RingDevices, ResearchSettingsHaveTheBitsOfAttention) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  const std::vector<std::vector<int32_t>> passes = {{30, 0}, {1, 9}, {1, 1}, {65, 8}, {0, 1}, {20, 1}};
  for (const ResearchCase& c : ResearchCases()) {
    for (Shape shape : {Shape{4, 2, 24, 192, 2}, Shape{3, 3, 72, 192, 2}}) {
      if (c.edit) c.edit(&shape);
      for (const int window : {0, 50}) {
        if (window > 0 && !c.has_window) continue;
        const auto expected = Ring(cpu, c.precision, 1, c.settings, shape).RunAll(passes, window);
        for (const int count : {2, 4, 8}) {
          EXPECT_EQ(Ring(backend, c.precision, count, c.settings, shape).RunAll(passes, window), expected)
              << c.name << ", " << count << " devices, window " << window << ", head_dim " << shape.head_dim;
        }
      }
    }
    // A round for every KV head. A narrow window fills the cache in little time.
    Shape deep{4, 2, 24, 1408};
    if (c.edit) c.edit(&deep);
    const auto run = [&](const std::shared_ptr<Backend>& on, int count) {
      Ring ring(on, c.precision, count, c.settings, deep);
      ring.RunAll(std::vector<int32_t>{1300}, c.has_window ? 16 : 0);
      return ring.RunAll(std::vector<int32_t>{33, 1, 3}, 0);
    };
    EXPECT_EQ(run(backend, 2), run(cpu, 1)) << c.name;
  }
  for (const Device& device : backend->devices()) backend->CheckFinite(device);
}

INSTANTIATE_TEST_SUITE_P(Devices, RingDevices, testing::Values(kCpu, kRingGpus),
                         [](const auto& param) { return std::string(param.index == 0 ? "cpu" : "cuda"); });

// Heads that tiles are built for, long passes after short ones, one KV head and several, contexts of many pages.
TEST(RingAttention, GpusGiveTheBitsOfOneCpu) {
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
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
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
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

// Words of streams of values in the place of streams of keys (SharesStreams), a tile or a few at a time: with rows that list what is
// beyond first words, of which some have too much to list, and with rows that need all words. Sequences next to each other.
TEST(RingAttention, GpusWhoseStreamsShareMemoryGiveTheBitsOfOneCpu) {
  STOCH_OPEN_OR_SKIP(all, kRingGpus);
  const std::shared_ptr<Backend> cpu = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  const std::vector<std::vector<int32_t>> passes = {{640, 90}, {1, 300}, {700, 17}};
  for (const char* settings : {"preset=halved", "preset=halved,qk.stoc_len=64", "preset=halved,av.stoc_len=64"}) {
    for (const Shape& shape : {Shape{4, 2, 64, 1408, 2}, Shape{8, 1, 128, 1408, 2}}) {
      for (const int window : {0, 500}) {
        const auto expected = Ring(cpu, Precision::kSc, 1, settings, shape).RunAll(passes, window);
        for (const char* list_from : {"1", "100000"}) {
          for (const char* bytes : {"1", "1200000"}) {
            const ScopedVariables limits({{"STOCH_TEST_SCORE_BYTES", bytes}, {"STOCH_TEST_LIST_FROM", list_from}});
            const std::shared_ptr<Backend> gpu = OpenBackend(kRingGpus.device, {}, nullptr);
            for (const int count : {2, 8}) {
              EXPECT_EQ(Ring(gpu, Precision::kSc, count, settings, shape).RunAll(passes, window), expected)
                  << settings << ", head_dim " << shape.head_dim << ", window " << window << ", lists from "
                  << list_from << ", " << bytes << " bytes, " << count << " devices";
            }
          }
        }
      }
    }
  }
}

// ------------------------------------------------------------------------------------------- hops of two GPUs ----

TEST(RingAttention, GpusRefuseWhatTheyDoNotHave) {
  STOCH_OPEN_OR_SKIP(gpu, kRingGpus);
  Ring query(gpu, Precision::kFp32, 2);
  query.call.route = RingRoute::kQuery;
  query.Prepare(20, 0);
  ExpectInvalid([&] { query.Run(); }, {"layer 0 attention", "exact queries and those of research settings do not go"});
  Shape dilated;
  dilated.pairs = {{64, 2}};
  Ring exact(gpu, Precision::kFp32, 2, "preset=halved", dilated);
  exact.Prepare(20, 0);
  ExpectInvalid([&] { exact.Run(); }, {"layer 0 attention", "dilated attention in a cache of another mode"});
  Ring small(gpu, Precision::kSc, 2);
  small.Prepare(20, 0);
  small.call.scratch[1].shape[0] = 64;
  ExpectInvalid([&] { small.Run(); }, {"scratch of 64 bytes on cuda:1"});
  Ring integers(gpu, Precision::kSc, 2, "av.arith=int8");
  integers.call.route = RingRoute::kQuery;
  integers.Prepare(20, 0);
  ExpectInvalid([&] { integers.Run(); }, {"layer 0 attention", "research settings do not go to the keys of GPUs"});
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
  Shape capped;
  capped.score_cap = 3;
  Ring caps(OpenBackend("cpu:2", {.threads = 1, .cpu_variant = ""}, nullptr), Precision::kSc, 2, "preset=halved",
            capped);
  caps.Prepare(20, 0);
  caps.call.parts[1].score_cap = 2;
  ExpectInvalid([&] { caps.Run(); }, {"the cache on cpu:1", "another shape"});
  refused([](Ring& ring) { ring.call.parts[0].q = Slice(ring.call.parts[0].q, 0, 0, 3); }, {"q is F32[3, 96]"});
  refused([](Ring& ring) { ring.call.scratch[1].shape[0] = 64; }, {"scratch of 64 bytes"});
  refused([](Ring& ring) { ring.call.parts[0].rope = Slice(ring.call.parts[0].rope, 0, 0, 11); },
          {"ends at position 20", "the rope table has 11 of the 12 before it"});
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
