// SPDX-License-Identifier: Apache-2.0
// Positions dealt over devices: what goes round the ring, and that the bits are those of one device.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/verify/verify.h"
#include "kernels/math/random.h"
#include "kernels/registry.h"
#include "models/decoder/memory_plan.h"
#include "models/sc_model_config.h"

namespace stoch::cli {
namespace {

// A small shape: four heads over two KV heads, one layer.
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 32;
constexpr int64_t kFillRows = 512;
constexpr int32_t kPromptRows = 37;  // which go by the ring; then one by its query
const std::vector<DilatedPair> kPairs = {{2048, 1}, {8192, 4}};

struct Kind {
  const char* name;
  Precision precision;
  std::span<const DilatedPair> pairs = {};  // what all but the rows that fill a cache see
};

// The devices of --device, or logical ones where those are fewer than two.
std::shared_ptr<Backend> RingDevices(const VerifyContext& context, std::string* note) {
  const auto count = static_cast<int64_t>(context.backend->devices().size());
  if (count > 1 && IsStripeCount(count)) return context.backend;
  *note = "on logical CPU devices";
  return OpenBackend("cpu:8", {.threads = 0, .cpu_variant = ""}, nullptr);
}

KvCacheSpec SpecOf(Precision precision, int stripes, int64_t positions) {
  DecoderConfig config;
  config.num_attention_heads = kHeads;
  config.num_key_value_heads = kKvHeads;
  config.head_dim = kHeadDim;
  KvCacheSpec spec = MakeKvCacheSpec(config, precision, HalvedScModelConfig(), 1, PagesOf(positions));
  spec.stripes = stripes;
  spec.dilated = precision == Precision::kSc;
  return spec;
}

// Attention of one sequence over one device, or dealt over several: one row of random numbers for each position.
class Sequence {
 public:
  Sequence(Backend& backend, std::span<const Device> devices, Precision precision, int64_t positions)
      : backend_(backend), count_(static_cast<int>(devices.size())) {
    const KvCacheSpec spec = SpecOf(precision, count_, positions);
    pages_.resize(static_cast<size_t>(spec.num_pages));
    std::iota(pages_.begin(), pages_.end(), 0);
    const PassLimits limits{kFillRows, 1, spec.num_pages};
    for (int i = 0; i < count_; ++i) {
      const Device device = devices[static_cast<size_t>(i)];
      const Stripe stripe{i, count_};
      Part& part = parts_.emplace_back();
      part.device = device;
      part.cache = backend.MakeKvCache(device, spec);
      part.pass = backend.MakePass(device, limits);
      part.rope_rows = stripe.Below(positions);
      part.rope = Dealt(device, 4, stripe, {0, static_cast<int32_t>(part.rope_rows), 0}, kHeadDim);
      part.scratch_bytes = count_ > 1 ? backend.RingScratchBytes(spec, kHeads, limits) : 0;
      part.scratch = backend.Allocate(device, part.scratch_bytes);
    }
    positions_ = positions;
  }

  // Rows of the next `count` positions, which see `window` positions (0: all), of them what `pairs` admit. Returns: their
  // outputs.
  std::vector<float> Run(int32_t count, int window, std::span<const DilatedPair> pairs = {}) {
    PassLayout layout;
    layout.ids.assign(static_cast<size_t>(count), 0);
    layout.sequences.push_back({0, count, static_cast<int32_t>(done_), pages_});
    RingAttentionCall ring;
    ring.site = {0, "attention"};
    std::vector<Buffer> memory;
    for (int i = 0; i < count_; ++i) {
      Part& part = parts_[static_cast<size_t>(i)];
      backend_.UploadPass(*part.pass, layout);
      const DealtRows rows = DealPass(layout, {i, count_}).front();
      const auto view = [&](uint64_t stream, int64_t cols) {
        memory.push_back(Dealt(part.device, stream, {i, count_}, rows, cols));
        return MakeView(memory.back().data(), DType::kF32, part.device, rows.num_rows, cols);
      };
      AttentionCall call;
      call.site = ring.site;
      call.q = view(1, kHeads * kHeadDim);
      call.k = view(2, kKvHeads * kHeadDim);
      call.v = view(3, kKvHeads * kHeadDim);
      call.out = view(5, kHeads * kHeadDim);
      call.rope = MakeView(part.rope.data(), DType::kF32, part.device, part.rope_rows, kHeadDim);
      call.cache = part.cache.get();
      call.pass = part.pass.get();
      call.num_heads = kHeads;
      call.window = window;
      call.dilated = pairs;
      ring.parts.push_back(call);
      ring.scratch.push_back(MakeView(part.scratch.data(), DType::kU8, part.device, part.scratch_bytes));
    }
    count_ > 1 ? backend_.RingAttention(ring) : backend_.Attention(ring.parts.front());
    std::vector<float> all(static_cast<size_t>(count) * kHeads * kHeadDim);
    for (int i = 0; i < count_; ++i) {
      const TensorView& out = ring.parts[static_cast<size_t>(i)].out;
      std::vector<float> own(static_cast<size_t>(out.numel()));
      if (!own.empty()) backend_.CopyToHost(own.data(), out);
      const DealtRows rows = DealPass(layout, {i, count_}).front();
      constexpr int64_t kCols = int64_t{kHeads} * kHeadDim;
      for (int32_t row = 0; row < rows.num_rows; ++row) {
        const int64_t to = Stripe{i, count_}.Absolute(rows.first_local + row) - done_;
        std::copy_n(own.begin() + row * kCols, kCols, all.begin() + to * kCols);
      }
      backend_.CheckFinite(parts_[static_cast<size_t>(i)].device);
    }
    done_ += count;
    return all;
  }
  int64_t left() const { return positions_ - done_; }

 private:
  struct Part {
    Device device;
    std::unique_ptr<KvCache> cache;
    std::unique_ptr<Pass> pass;
    Buffer rope, scratch;
    int64_t rope_rows = 0;  // of the device's own positions
    int64_t scratch_bytes = 0;
  };

  Buffer Dealt(Device device, uint64_t stream, const Stripe& stripe, const DealtRows& rows, int64_t cols) {
    Buffer buffer = backend_.Allocate(device, rows.num_rows * cols * 4);
    const TensorView view = MakeView(buffer.data(), DType::kF32, device, rows.num_rows, cols);
    std::vector<float> values;
    for (int32_t row = 0; row < rows.num_rows; ++row) {
      const auto first = static_cast<uint64_t>(stripe.Absolute(rows.first_local + row) * cols);
      for (int64_t i = 0; i < cols; ++i) {
        values.push_back(RandomWeight(9, stream, first + static_cast<uint64_t>(i), 1.0F));
      }
    }
    if (!values.empty()) backend_.CopyFromHost(view, values.data());
    return buffer;
  }

  Backend& backend_;
  int count_;
  int64_t positions_ = 0;
  int64_t done_ = 0;
  std::vector<int32_t> pages_;
  std::vector<Part> parts_;
};

// Outputs of the last rows at a depth of so many positions: by the ring, then of one row by its query.
std::vector<float> LastRows(Backend& backend, std::span<const Device> devices, const Kind& kind, int64_t positions) {
  Sequence sequence(backend, devices, kind.precision, positions);
  while (sequence.left() > kPromptRows + 1) {  // rows that see next to nothing fill the cache
    sequence.Run(static_cast<int32_t>(std::min<int64_t>(kFillRows, sequence.left() - kPromptRows - 1)), 1);
  }
  std::vector<float> rows = sequence.Run(kPromptRows, 0, kind.pairs);
  const std::vector<float> last = sequence.Run(1, 0, kind.pairs);
  rows.insert(rows.end(), last.begin(), last.end());
  return rows;
}

// Rings of 2, 4 and 8 of the devices.
std::vector<int> RingSizes(const Backend& backend) {
  std::vector<int> sizes;
  for (const int size : {2, 4, 8}) {
    if (static_cast<size_t>(size) <= backend.devices().size()) sizes.push_back(size);
  }
  return sizes;
}

// Compares what arrives from one origin, hop by hop.
class HopProbe final : public RingProbe {
 public:
  void OnArrive(const RingHop& hop, std::span<const uint8_t> bytes) override {
    const std::lock_guard lock(mutex_);
    ++arrived;
    std::vector<uint8_t> block(bytes.begin(), bytes.end());
    const auto [known, is_new] = blocks.try_emplace({hop.kv_head, hop.origin}, block);
    if (!is_new && known->second != block) ++changed;
    receivers[{hop.kv_head, hop.origin}].insert(hop.to.index);
  }

  using Key = std::pair<int64_t, int>;  // KV head, origin
  int64_t arrived = 0, changed = 0;
  std::map<Key, std::vector<uint8_t>> blocks;
  std::map<Key, std::set<int>> receivers;

 private:
  std::mutex mutex_;
};

CheckResult RingHopIdentityCheck(const VerifyContext& context) {
  std::string note;
  const std::shared_ptr<Backend> backend = RingDevices(context, &note);
  int64_t hops = 0;
  for (const int size : RingSizes(*backend)) {
    const std::span<const Device> devices = backend->devices().first(static_cast<size_t>(size));
    for (const Precision precision : {Precision::kSc, Precision::kFp32}) {
      HopProbe probe;
      Sequence sequence(*backend, devices, precision, 300);
      if (!backend->ProbeRing(&probe)) return {false, "the backend cannot show its hops"};
      sequence.Run(300, 0);
      backend->ProbeRing(nullptr);
      hops += probe.arrived;
      std::set<std::string> different;
      for (const auto& [key, block] : probe.blocks) different.emplace(block.begin(), block.end());
      const auto everywhere = [&](const auto& entry) { return entry.second.size() == static_cast<size_t>(size - 1); };
      const bool complete = static_cast<int>(different.size()) == size * kKvHeads &&
                            probe.arrived == static_cast<int64_t>(different.size()) * (size - 1) &&
                            std::all_of(probe.receivers.begin(), probe.receivers.end(), everywhere);
      if (probe.changed == 0 && complete) continue;
      return {false, fmt::format("{} devices: {} hops of {} blocks, {} of them with other bytes than before", size,
                                 probe.arrived, different.size(), probe.changed)};
    }
  }
  return {true, fmt::format("{} hops brought every block to every device as it was{}{}", hops, note.empty() ? "" : ", ",
                            note)};
}

CheckResult StripesEqualSingleCheck(const VerifyContext& context) {
  std::string note;
  const std::shared_ptr<Backend> backend = RingDevices(context, &note);
  const std::vector<Kind> kinds = {
      {"SC", Precision::kSc}, {"exact", Precision::kFp32}, {"dilated SC", Precision::kSc, kPairs}};
  int64_t compared = 0;
  for (const Kind& kind : kinds) {
    for (const int64_t positions : {300, 5000, 20000}) {
      const std::vector<float> expected = LastRows(*backend, backend->devices().first(1), kind, positions);
      for (const int size : RingSizes(*backend)) {
        const std::span<const Device> devices = backend->devices().first(static_cast<size_t>(size));
        const std::vector<float> dealt = LastRows(*backend, devices, kind, positions);
        ++compared;
        if (dealt.size() == expected.size() &&
            std::memcmp(dealt.data(), expected.data(), dealt.size() * sizeof(float)) == 0) {
          continue;
        }
        return {false, fmt::format("{} attention at {} positions over {} devices has other bits than on one", kind.name,
                                   positions, size)};
      }
    }
  }
  return {true, fmt::format("prompt and step at 300, 5000 and 20000 positions, {} times the bits of one device{}{}",
                            compared, note.empty() ? "" : ", ", note)};
}

}  // namespace

std::vector<Check> RingChecks(const VerifyContext& context) {
  const auto check = [&context](const char* name, const char* description, const auto& run) {
    return Check{name, description, [context, run] { return run(context); }};
  };
  return {check("ring_hop_identity", "keys and values stay as they are on every hop of a ring", RingHopIdentityCheck),
          check("stripes_equal_single", "attention over dealt positions has the bits of one device",
                StripesEqualSingleCheck)};
}

}  // namespace stoch::cli
