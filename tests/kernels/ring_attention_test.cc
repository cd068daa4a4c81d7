// SPDX-License-Identifier: Apache-2.0
// RingAttention: both routes give the bits of Attention, and what breaks its contract is refused before any work.

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kernels/math/random.h"
#include "kernels/registry.h"
#include "models/decoder/memory_plan.h"
#include "models/sc_model_config.h"
#include "tests/support/expect_invalid.h"

namespace stoch::test {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 24;
constexpr int64_t kPositions = 192;

// A sequence over some logical devices, with a call that runs its next rows.
struct Ring {
  Ring(Precision precision, int count, const std::string& settings = "preset=halved") : stripes(count) {
    backend = OpenBackend("cpu:8", {.threads = 1, .cpu_variant = ""}, nullptr);
    DecoderConfig config;
    config.num_attention_heads = kHeads;
    config.num_key_value_heads = kKvHeads;
    config.head_dim = kHeadDim;
    spec = MakeKvCacheSpec(config, precision, ParseScModelConfig(std::vector<std::string>{settings}), 1,
                           kPositions / kKvPageTokens);
    spec.stripes = count;
    pages = {2, 0, 1};
    for (int i = 0; i < count; ++i) {
      const Device device{DeviceKind::kCpu, i};
      caches.push_back(backend->MakeKvCache(device, spec));
      passes.push_back(backend->MakePass(device, {kPositions, 2, 3}));
      call.parts.emplace_back();
      const int64_t bytes = backend->RingScratchBytes(spec, kHeads, {kPositions, 2, 3});
      memory.push_back(backend->Allocate(device, bytes));
      memset(memory.back().data(), 0xff, static_cast<size_t>(bytes));  // NaN where a hop brought nothing
      call.scratch.push_back(MakeView(memory.back().data(), DType::kU8, device, bytes));
    }
    call.site = {0, "attention"};
  }

  TensorView Random(Device device, uint64_t stream, const DealtRows& rows, const Stripe& stripe, int64_t cols) {
    memory.push_back(backend->Allocate(device, std::max<int64_t>(1, rows.num_rows * cols) * 4));
    auto* out = static_cast<float*>(memory.back().data());
    for (int32_t row = 0; row < rows.num_rows; ++row) {
      const auto first = static_cast<uint64_t>(stripe.Absolute(rows.first_local + row) * cols);
      for (int64_t i = 0; i < cols; ++i) *out++ = RandomWeight(3, stream, first + static_cast<uint64_t>(i), 1.0F);
    }
    return MakeView(memory.back().data(), DType::kF32, device, rows.num_rows, cols);
  }

  // Makes the call of the rows of positions [done, done + count).
  void Prepare(int32_t count, int window) {
    layout = {};
    layout.ids.assign(static_cast<size_t>(count), 0);
    layout.sequences.push_back({0, count, done, pages});
    for (int i = 0; i < stripes; ++i) {
      const auto at = static_cast<size_t>(i);
      const Device device{DeviceKind::kCpu, i};
      const Stripe stripe{i, stripes};
      backend->UploadPass(*passes[at], layout);
      const DealtRows rows = DealPass(layout, stripe).front();
      AttentionCall& part = call.parts[at];
      part.site = call.site;
      part.q = Random(device, 1, rows, stripe, kHeads * kHeadDim);
      part.k = Random(device, 2, rows, stripe, kKvHeads * kHeadDim);
      part.v = Random(device, 3, rows, stripe, kKvHeads * kHeadDim);
      part.out = Random(device, 4, rows, stripe, kHeads * kHeadDim);
      part.rope = Random(device, 5, {0, kPositions, 0}, {}, kHeadDim);
      part.cache = caches[at].get();
      part.pass = passes[at].get();
      part.num_heads = kHeads;
      part.window = window;
    }
  }

  // Outputs by position.
  std::vector<float> Run() {
    stripes > 1 ? backend->RingAttention(call) : backend->Attention(call.parts.front());
    constexpr int64_t kCols = int64_t{kHeads} * kHeadDim;
    std::vector<float> all(layout.ids.size() * kCols);
    for (int i = 0; i < stripes; ++i) {
      const DealtRows rows = DealPass(layout, {i, stripes}).front();
      const auto* out = call.parts[static_cast<size_t>(i)].out.ptr<const float>();
      for (int32_t row = 0; row < rows.num_rows; ++row) {
        const int64_t to = Stripe{i, stripes}.Absolute(rows.first_local + row) - done;
        std::copy_n(out + row * kCols, kCols, all.begin() + to * kCols);
      }
    }
    done += static_cast<int32_t>(layout.ids.size());
    return all;
  }

  int stripes;
  std::shared_ptr<Backend> backend;
  KvCacheSpec spec;
  std::vector<int32_t> pages;
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<std::unique_ptr<Pass>> passes;
  std::vector<Buffer> memory;
  PassLayout layout;
  RingAttentionCall call;
  int32_t done = 0;
};

TEST(RingAttention, BothRoutesGiveTheBitsOfAttention) {
  for (const Precision precision : {Precision::kFp32, Precision::kSc}) {
    for (const int window : {0, 50}) {
      Ring alone(precision, 1);
      std::vector<std::vector<float>> expected;
      for (const int32_t rows : {21, 1, 90, 3, 30}) {
        alone.Prepare(rows, window);
        expected.push_back(alone.Run());
      }
      for (const int count : {2, 4, 8}) {
        for (const RingRoute route : {RingRoute::kRing, RingRoute::kQuery, RingRoute::kAuto}) {
          Ring ring(precision, count);
          ring.call.route = route;
          size_t pass = 0;
          for (const int32_t rows : {21, 1, 90, 3, 30}) {
            ring.Prepare(rows, window);
            EXPECT_EQ(ring.Run(), expected[pass++])
                << rows << " rows, " << count << " devices, window " << window << ", route " << static_cast<int>(route);
          }
        }
      }
    }
  }
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
