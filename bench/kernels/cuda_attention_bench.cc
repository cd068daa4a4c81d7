// SPDX-License-Identifier: Apache-2.0
// Attention of the Llama-3.1-8B shape on a GPU (32 layers, 32 heads, 8 KV heads, head_dim 128): SC per_token and the
// fp16 baseline, decode as one CUDA graph of all layers, prefill of whole windows. Caches hold real keys and values.
//
// Bits against the CPU are the business of tests/kernels/gpu/attention_test.cc, over the same kernels.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/kernels/gpu.h"
#include "kernels/math/random.h"
#include "kernels/registry.h"

namespace stoch {
namespace {

constexpr int kLayers = 32;
constexpr int kHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kRowFloats = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int kPageTokens = 64;

KvCacheSpec SpecOf(const std::string& kind, int64_t pages) {
  KvCacheSpec spec;
  spec.num_layers = kLayers;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim = kHeadDim;
  spec.page_tokens = kPageTokens;
  spec.num_pages = pages;
  if (kind == "fp16") {
    spec.precision = Precision::kFp16;
    return spec;
  }
  if (kind == "fp32") return spec;
  ScConfig config;
  config.halve = kind != "sc256";
  if (kind == "sc64") config.stoc_len = 64;
  spec.mode = kind == "per_head" ? AttentionMode::kPerHead : AttentionMode::kPerToken;
  if (kind == "per_head") config.granularity = ScGranularity::kPerHead;
  spec.qk = spec.av = MakeScOperator(config);
  return spec;
}

// Sequences with `contexts` positions in the cache; the next pass gives each `rows` more.
class Fixture {
 public:
  Fixture(Backend& backend, const std::string& kind, const std::vector<int64_t>& contexts, int64_t rows)
      : backend_(backend), device_(backend.devices()[0]) {
    const int64_t longest = *std::max_element(contexts.begin(), contexts.end());
    const auto sequences = static_cast<int64_t>(contexts.size());
    const int64_t max_rows = std::max({std::min(longest, kFillRows), sequences * rows});
    int64_t pages = 0;
    for (const int64_t context : contexts) pages += PagesOf(context + rows);
    cache_ = backend.MakeKvCache(device_, SpecOf(kind, pages));
    pass_ = backend.MakePass(device_, {max_rows, sequences, PagesOf(longest + rows)});
    const int64_t filled = std::max(max_rows, std::min(longest, kDistinctRows));
    qkv_ = Tensor(filled, kRowFloats);
    out_ = Tensor(max_rows, kHeads * kHeadDim);
    rope_ = Tensor(longest + rows, kHeadDim);
    int32_t next = 0;
    for (const int64_t context : contexts) {
      std::vector<int32_t>& list = pages_.emplace_back();
      for (int64_t p = 0; p < PagesOf(context + rows); ++p) list.push_back(next++);
    }
    // Prompts of kFillRows that stand where a longer one would: what it costs is not what is measured.
    for (size_t s = 0; s < contexts.size(); ++s) {
      for (int64_t begin = 0; begin < contexts[s]; begin += kFillRows) {
        const int64_t count = std::min(kFillRows, contexts[s] - begin);
        PassLayout layout;
        layout.sequences.push_back({0, static_cast<int32_t>(count), 0,
                                    std::span<const int32_t>(pages_[s]).subspan(static_cast<size_t>(PagesOf(begin)))});
        layout.ids.resize(static_cast<size_t>(count));
        backend_.UploadPass(*pass_, layout);
        Attend(count, begin % filled);
      }
    }
    PassLayout layout;
    for (size_t s = 0; s < contexts.size(); ++s) {
      layout.sequences.push_back({static_cast<int32_t>(layout.ids.size()), static_cast<int32_t>(rows),
                                  static_cast<int32_t>(contexts[s]), pages_[s]});
      layout.ids.resize(layout.ids.size() + static_cast<size_t>(rows));
    }
    backend_.UploadPass(*pass_, layout);
  }

  // Every layer once, with `rows` of the inputs from `first` on.
  void Attend(int64_t rows, int64_t first = 0) {
    const TensorView x = Slice(qkv_.view, 0, first, rows);
    for (int layer = 0; layer < kLayers; ++layer) {
      AttentionCall call;
      call.site = {layer, "attention"};
      call.q = Slice(x, 1, 0, kHeads * kHeadDim);
      call.k = Slice(x, 1, kHeads * kHeadDim, kKvHeads * kHeadDim);
      call.v = Slice(x, 1, (kHeads + kKvHeads) * kHeadDim, kKvHeads * kHeadDim);
      call.rope = rope_.view;
      call.cache = cache_.get();
      call.cache_layer = layer;
      call.pass = pass_.get();
      call.num_heads = kHeads;
      call.out = Slice(out_.view, 0, 0, rows);
      backend_.Attention(call);
    }
  }

  const Device& device() const { return device_; }

 private:
  struct DeviceTensor {
    Buffer buffer;
    TensorView view;
  };

  DeviceTensor Tensor(int64_t rows, int64_t cols) {
    DeviceTensor t;
    t.buffer = backend_.Allocate(device_, rows * cols * 4);
    t.view = MakeView(t.buffer.data(), DType::kF32, device_, rows, cols);
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < values.size(); ++i) values[i] = RandomWeight(1, static_cast<uint64_t>(cols), i, 1.0f);
    backend_.CopyFromHost(t.view, values.data());
    return t;
  }

  static constexpr int64_t kFillRows = 2048;
  static constexpr int64_t kDistinctRows = 32768;  // beyond, keys and values come again, and with them large weights
  static int64_t PagesOf(int64_t positions) { return (positions + kPageTokens - 1) / kPageTokens; }

  Backend& backend_;
  Device device_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Pass> pass_;
  DeviceTensor qkv_, out_, rope_;
  std::vector<std::vector<int32_t>> pages_;
};

// args: sequences, context, rows of each in the timed pass, and, where it is not 0, the context of one sequence more.
// Time of all 32 layers.
void Attention(benchmark::State& state, const std::string& kind, bool graph) {
  Backend* backend = Gpu();
  if (backend == nullptr) {
    state.SkipWithError("no usable GPU");
    return;
  }
  const auto sequences = static_cast<size_t>(state.range(0));
  const int64_t rows = state.range(2);
  std::vector<int64_t> contexts(sequences, state.range(1));
  if (state.range(3) > 0) contexts.push_back(state.range(3));
  const auto total = static_cast<int64_t>(contexts.size());
  Fixture fixture(*backend, kind, contexts, rows);
  static int keys = 0;
  const std::string key = graph ? "attention" + std::to_string(++keys) : "";
  const auto run = [&] { backend->RunGraph(fixture.device(), key, [&] { fixture.Attend(total * rows); }); };
  for (int i = 0; i < 3; ++i) run();
  backend->Synchronize(fixture.device());
  const int rounds = graph ? 20 : 1;
  for ([[maybe_unused]] auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) run();
    backend->Synchronize(fixture.device());
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / rounds);
  }
  // Products of q k and p v over causal positions.
  double positions = 0;
  for (const int64_t context : contexts)
    positions += static_cast<double>(context) + (static_cast<double>(rows) + 1) / 2;
  const double products = 2.0 * kLayers * kHeads * kHeadDim * static_cast<double>(rows) * positions;
  state.counters["us_per_layer"] =
      benchmark::Counter(kLayers * 1e-6, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["products/s"] = benchmark::Counter(products, benchmark::Counter::kIsIterationInvariantRate);
}

void Register() {
  for (const std::string kind : {"sc", "sc64", "sc256", "fp16"}) {
    auto* decode = benchmark::RegisterBenchmark(("decode/" + kind).c_str(),
                                                [kind](benchmark::State& s) { Attention(s, kind, true); });
    for (const int context : {127, 400, 511, 1023, 2047, 4095, 8191, 16383, 32767, 65535, 131071})
      decode->Args({1, context, 1, 0});
    decode->Args({8, 127, 1, 0})->Args({32, 127, 1, 0})->Args({32, 1023, 1, 0});
    for (const int batch : {8, 16, 32}) decode->Args({batch, 2047, 1, 0});
    decode->Args({2, 8191, 1, 0})
        ->Args({8, 4095, 1, 0})
        ->Args({8, 8191, 1, 0})
        ->Args({31, 127, 1, 0})
        ->Args({31, 127, 1, 32767});
    decode->UseManualTime()->Iterations(5)->Unit(benchmark::kMicrosecond);
  }
  for (const std::string kind : {"sc", "sc64", "sc256", "per_head", "fp32", "fp16"}) {
    auto* prefill = benchmark::RegisterBenchmark(("prefill/" + kind).c_str(),
                                                 [kind](benchmark::State& s) { Attention(s, kind, false); });
    prefill->Args({1, 0, 512, 0})->Args({1, 0, 2048, 0});
    if (kind == "sc" || kind == "fp16")
      prefill->Args({1, 6144, 2048, 0})->Args({1, 30720, 2048, 0})->Args({1, 129024, 2048, 0})->Args({8, 0, 256, 0});
    prefill->UseManualTime()->Iterations(3)->Unit(benchmark::kMillisecond);
  }
}

const bool kRegistered = (Register(), true);

}  // namespace
}  // namespace stoch
