// SPDX-License-Identifier: Apache-2.0
// Linears of real Llama shapes on the CPU: SC against exact, decode (1 row) and prefill; an LM head in floats against
// one in integers.
//
// Every case is first compared with the scalar reference, bit for bit. Counters: bytes_per_second is weight bytes, and
// share_of_read_bandwidth that rate over the machine's measured one (decode); products_per_second counts
// multiplications (prefill). Rates use wall time.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/math/elementary.h"
#include "kernels/math/random.h"
#include "kernels/registry.h"

namespace stoch {
namespace {

// The last two: numbers as a file holds them.
enum Kind : int64_t { kSc128, kSc256, kExactF16, kFixedF16, kExactBf16, kFixedBf16 };
constexpr const char* kKindNames[] = {"sc_L128", "sc_L256", "exact_f16", "fixed_f16", "exact_bf16", "fixed_bf16"};
bool IsExact(Kind kind) { return kind != kSc128 && kind != kSc256; }

// What "variant" counts; "" is the fastest.
constexpr const char* kVariants[] = {"", "avx2", "avx512bw"};

LinearSpec SpecOf(Kind kind) {
  if (IsExact(kind)) {
    LinearSpec spec{Precision::kFp32, nullptr};
    spec.fixed_point = kind == kFixedF16 || kind == kFixedBf16;
    return spec;
  }
  ScConfig config;
  config.chunk_d = 128;
  config.halve = kind == kSc128;
  return {Precision::kSc, MakeScOperator(config)};
}

std::unique_ptr<Backend> Open(const char* variant, int threads) {
  BackendOptions options;
  options.cpu_variant = variant;
  options.threads = threads;
  return OpenBackend("cpu", options, nullptr);
}

// Random numbers of one shape as BF16, kept for the next case of it.
const uint16_t* Bf16Numbers(int64_t rows, int64_t cols) {
  static int64_t kept = 0;
  static std::vector<uint16_t> numbers;
  if (kept != rows * cols) {
    kept = rows * cols;
    numbers.resize(static_cast<size_t>(kept));
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<uint16_t>(FloatToBits(RandomWeight(1, 0, i, 0.02f)) >> 16);
    }
  }
  return numbers.data();
}

// One linear with its operands.
class Linear {
 public:
  Linear(Backend& backend, Kind kind, int64_t tokens, int64_t rows, int64_t cols) : backend_(backend) {
    const Device device = backend.devices().front();
    WeightSource source;
    source.name = "weight";
    source.rows = rows;
    source.cols = cols;
    source.seed = 1;
    source.stddev = 0.02f;
    if (kind == kExactBf16 || kind == kFixedBf16) {
      source.host = Bf16Numbers(rows, cols);
      source.dtype = DType::kBF16;
    }
    weight_ = backend.MakeLinear(device, {&source, 1}, SpecOf(kind));
    x_ = backend.Allocate(device, tokens * cols * 4);
    out_ = backend.Allocate(device, tokens * rows * 4);
    call_.site.op = "bench";
    call_.x = MakeView(x_.data(), DType::kF32, device, tokens, cols);
    call_.weights = {weight_.get()};
    call_.outs = {MakeView(out_.data(), DType::kF32, device, tokens, rows)};
    for (int64_t i = 0; i < tokens * cols; ++i) {
      static_cast<float*>(x_.data())[i] = RandomWeight(2, 0, static_cast<uint64_t>(i), 1.0f);
    }
  }
  void Run() { backend_.Linear(call_); }
  const LinearWeight& weight() const { return *weight_; }
  bool SameOutput(const Linear& other) const {
    return std::memcmp(out_.data(), other.out_.data(), std::min(out_.bytes(), other.out_.bytes())) == 0;
  }

 private:
  Backend& backend_;
  std::unique_ptr<LinearWeight> weight_;
  Buffer x_, out_;
  LinearCall call_;
};

// The first tokens agree with the scalar reference. Remembered per shape: the reference is slow.
bool Verified(Backend& backend, Kind kind, int64_t tokens, int64_t rows, int64_t cols, int64_t variant) {
  static std::map<std::vector<int64_t>, bool> known;
  const int64_t checked = std::min<int64_t>(tokens, 3);
  const std::vector<int64_t> key = {kind, checked, rows, cols, variant};
  if (const auto it = known.find(key); it != known.end()) return it->second;
  const std::unique_ptr<Backend> reference = Open("scalar", 0);
  Linear expected(*reference, kind, checked, rows, cols);
  Linear actual(backend, kind, tokens, rows, cols);
  expected.Run();
  actual.Run();
  return known[key] = actual.SameOutput(expected);
}

void Bench(benchmark::State& state, int64_t variant) {
  const Kind kind = static_cast<Kind>(state.range(0));
  const int64_t tokens = state.range(1);
  const int64_t rows = state.range(2);
  const int64_t cols = state.range(3);
  const std::unique_ptr<Backend> backend = Open(kVariants[variant], static_cast<int>(state.range(4)));
  state.SetLabel(kKindNames[kind]);
  if (!Verified(*backend, kind, tokens, rows, cols, variant)) {
    state.SkipWithError("differs from the scalar reference");
    return;
  }
  // Decode reads weights from memory: enough copies that none is in a cache when its turn comes.
  const int64_t bytes_of_one = rows * cols * (IsExact(kind) ? 2 : 1);
  const int64_t copies = tokens == 1 ? std::max<int64_t>(1, (int64_t{256} << 20) / bytes_of_one) : 1;
  std::vector<std::unique_ptr<Linear>> linears;
  for (int64_t i = 0; i < copies; ++i) linears.push_back(std::make_unique<Linear>(*backend, kind, tokens, rows, cols));
  size_t next = 0;
  for (auto _ : state) {
    linears[next]->Run();
    next = (next + 1) % linears.size();
  }
  const double runs = static_cast<double>(state.iterations());
  const double bytes = runs * static_cast<double>(linears.front()->weight().stream_bytes());
  state.counters["bytes_per_second"] = benchmark::Counter(bytes, benchmark::Counter::kIsRate);
  state.counters["products_per_second"] =
      benchmark::Counter(runs * static_cast<double>(tokens * rows * cols), benchmark::Counter::kIsRate);
  if (tokens == 1) {
    static double bandwidth = 0;
    bandwidth = std::max(bandwidth, backend->MeasureBandwidth(backend->devices().front()));
    state.counters["share_of_read_bandwidth"] = benchmark::Counter(bytes / bandwidth, benchmark::Counter::kIsRate);
  }
}

void BenchLinear(benchmark::State& state) { Bench(state, 0); }
void BenchHead(benchmark::State& state) { Bench(state, state.range(5)); }

void Shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"kind", "tokens", "rows", "cols", "threads"});
  for (const int64_t threads : {1, 0}) {
    for (const int64_t kind : {kSc128, kSc256, kExactF16}) {
      for (const int64_t tokens : {1, 8, 512}) {
        // Llama-3.2-1B: o_proj, gate_proj, down_proj; 8B: gate_proj.
        bench->Args({kind, tokens, 2048, 2048, threads});
        bench->Args({kind, tokens, 8192, 2048, threads});
        bench->Args({kind, tokens, 2048, 8192, threads});
        if (tokens == 1) bench->Args({kind, tokens, 14336, 4096, threads});
      }
    }
  }
}

// Llama-3.2-1B's LM head; to be run in turns (--benchmark_enable_random_interleaving).
void Heads(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"kind", "tokens", "rows", "cols", "threads", "variant"});
  for (const int64_t variant : {0, 1, 2}) {
    for (const int64_t tokens : {1, 2, 4, 8, 16, 128}) {
      for (const int64_t kind : {kExactBf16, kFixedBf16, kExactF16, kFixedF16}) {
        bench->Args({kind, tokens, 128256, 2048, 0, variant});
      }
    }
  }
}

BENCHMARK(BenchLinear)->Apply(Shapes)->UseRealTime()->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BenchHead)->Apply(Heads)->UseRealTime()->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);

void BenchReadBandwidth(benchmark::State& state) {
  const std::unique_ptr<Backend> backend = Open("", static_cast<int>(state.range(0)));
  double best = 0;
  for (auto _ : state) best = std::max(best, backend->MeasureBandwidth(backend->devices().front()));
  state.counters["bytes_per_second"] = best;
}
BENCHMARK(BenchReadBandwidth)->Arg(1)->Arg(0)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stoch
