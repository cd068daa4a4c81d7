// SPDX-License-Identifier: Apache-2.0
// Linears of the Llama-3.1-8B shape on a GPU: SC and the fp16 baseline, one matrix at a time and as whole decode steps.
//
// Every matrix has enough copies that a round over them is several times L2, and a round is one
// CUDA graph, as in decoding. Before timing, the output of every copy is compared with the CPU's (SC: bits).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/gpu.h"
#include "kernels/math/random.h"
#include "kernels/registry.h"

namespace stoch {
namespace {

constexpr int64_t kColdBytes = int64_t{400} << 20;  // several times the 50 to 60 MB of a Hopper's L2
constexpr int64_t kHidden = 4096;
constexpr int64_t kIntermediate = 14336;

struct Tensor {
  Buffer buffer;
  TensorView view;
};

Tensor MakeTensor(Backend& backend, int64_t rows, int64_t cols, uint64_t seed) {
  Tensor t;
  t.buffer = backend.Allocate(backend.devices()[0], rows * cols * 4);
  t.view = MakeView(t.buffer.data(), DType::kF32, backend.devices()[0], rows, cols);
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < values.size(); ++i) values[i] = RandomWeight(seed, 0, i, 1.0f);
  backend.CopyFromHost(t.view, values.data());
  return t;
}

std::vector<float> Read(Backend& backend, const Tensor& t) {
  std::vector<float> values(static_cast<size_t>(t.view.numel()));
  backend.CopyToHost(values.data(), t.view);
  return values;
}

LinearSpec SpecOf(const std::string& precision) {
  if (precision == "fp16") return {Precision::kFp16, nullptr};
  if (precision == "fp32") return {Precision::kFp32, nullptr};
  if (precision == "fixed") return {Precision::kFp32, nullptr, nullptr, true};
  ScConfig config;
  config.chunk_d = 128;
  config.halve = precision != "sc256";
  if (precision == "sc64") config.stoc_len = 64;
  return {Precision::kSc, MakeScOperator(config)};
}

std::unique_ptr<LinearWeight> MakeWeight(Backend& backend, int64_t rows, int64_t cols, uint64_t seed,
                                         const LinearSpec& spec) {
  WeightSource source;
  source.name = "w";
  source.rows = rows;
  source.cols = cols;
  source.seed = seed;
  source.stddev = 0.02f;
  return backend.MakeLinear(backend.devices()[0], std::span(&source, 1), spec);
}

// One linear of several stacked outputs with its operands.
struct Op {
  LinearCall call;
  std::vector<std::unique_ptr<LinearWeight>> weights;
  std::vector<Tensor> outs;
  Tensor x, x2, norm;
  int64_t bytes = 0;
};

std::unique_ptr<Op> MakeOp(Backend& backend, const LinearSpec& spec, const std::vector<int64_t>& sizes, int64_t cols,
                           int64_t rows, Prologue prologue, bool add, uint64_t seed) {
  auto op = std::make_unique<Op>();
  op->x = MakeTensor(backend, rows, cols, seed + 1);
  op->call.site = {0, "bench"};
  op->call.prologue = prologue;
  op->call.x = op->x.view;
  op->call.add_to_out = add;
  if (prologue == Prologue::kRmsNorm) {
    op->norm = MakeTensor(backend, 1, cols, seed + 2);
    op->call.norm_weight = MakeView(op->norm.view.data, DType::kF32, op->norm.view.device, cols);
    op->call.norm_eps = 1e-5f;
  }
  if (prologue == Prologue::kSiluMul) {
    op->x2 = MakeTensor(backend, rows, cols, seed + 3);
    op->call.x2 = op->x2.view;
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    op->weights.push_back(MakeWeight(backend, sizes[i], cols, seed * 10 + i, spec));
    op->call.weights.push_back(op->weights.back().get());
    op->outs.push_back(MakeTensor(backend, rows, sizes[i], seed + 4));
    op->call.outs.push_back(op->outs.back().view);
    op->bytes += op->weights.back()->stream_bytes();
  }
  return op;
}

// "" where the first rows of a one-matrix op are the CPU's (SC and fp32: the same bits; fp16: 1 % of the norm).
std::string Verify(Backend& backend, Op& op, const LinearSpec& spec, const std::string& name, uint64_t seed) {
  constexpr int64_t kCheckedRows = 8;
  static const auto cpu = OpenBackend("cpu", {}, nullptr);
  static std::map<std::string, std::vector<float>> expected;
  const int64_t m = op.weights[0]->rows();
  if (!expected.contains(name)) {
    const LinearSpec reference = spec.precision == Precision::kFp16 ? LinearSpec{Precision::kFp32, nullptr} : spec;
    const auto same = MakeOp(*cpu, reference, {m}, op.weights[0]->cols(), kCheckedRows, Prologue::kNone, false, seed);
    cpu->Linear(same->call);
    expected[name] = Read(*cpu, same->outs[0]);
  }
  backend.Linear(op.call);
  const std::vector<float> actual = Read(backend, op.outs[0]);
  const size_t count = std::min(actual.size(), expected[name].size());
  const float* wanted = expected[name].data();
  if (spec.precision != Precision::kFp16) {
    return std::memcmp(wanted, actual.data(), count * sizeof(float)) == 0 ? "" : "bits differ from the CPU's";
  }
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < count; ++i) {
    error += std::pow(static_cast<double>(actual[i] - wanted[i]), 2);
    norm += std::pow(static_cast<double>(wanted[i]), 2);
  }
  return std::sqrt(error) <= 0.01 * std::sqrt(norm) ? "" : "result differs from the CPU's";
}

// A key for the graph of these operands alone: a repetition of a benchmark has others at other addresses.
std::string GraphKey(const std::string& name) {
  static int made = 0;
  return name + "#" + std::to_string(++made);
}

// Seconds of one round, from rounds issued back to back.
double TimeRounds(Backend& backend, const std::string& key, const std::function<void()>& body) {
  const Device device = backend.devices()[0];
  constexpr int kRounds = 10;
  const auto run = [&] { backend.RunGraph(device, key, body); };
  for (int i = 0; i < 3; ++i) run();
  backend.Synchronize(device);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) run();
  backend.Synchronize(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRounds;
}

void Report(benchmark::State& state, double seconds, int64_t bytes, double products) {
  state.SetIterationTime(seconds);
  state.counters["GB/s"] = static_cast<double>(bytes) / seconds * 1e-9;
  state.counters["Tproducts/s"] = products / seconds * 1e-12;
}

void BM_Matrix(benchmark::State& state, const std::string& precision, int64_t m, int64_t k) {
  Backend* gpu = Gpu();
  if (gpu == nullptr) return state.SkipWithError("no GPU");
  const int64_t rows = state.range(0);
  const LinearSpec spec = SpecOf(precision);
  std::vector<std::unique_ptr<Op>> copies;
  int64_t bytes = 0;
  const int64_t count = std::max<int64_t>(2, kColdBytes / (m * k));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t seed = static_cast<uint64_t>(i) + 1;
    copies.push_back(MakeOp(*gpu, spec, {m}, k, rows, Prologue::kNone, false, seed));
    bytes += copies.back()->bytes;
  }
  const std::string name = precision + std::to_string(m) + "x" + std::to_string(k);
  const std::string why = Verify(*gpu, *copies[0], spec, name, 1);
  if (!why.empty()) return state.SkipWithError(why.c_str());
  const std::string key = GraphKey(name + "n" + std::to_string(rows));
  for (auto _ : state) {
    const double seconds = TimeRounds(*gpu, key, [&] {
      for (const auto& op : copies) gpu->Linear(op->call);
    });
    Report(state, seconds / static_cast<double>(count), bytes / count,
           static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(rows));
  }
}

// The linears of `kLayers` decoder layers in order, with their prologues and residual adds; time scaled to 32 layers.
void BM_DecodeLinears(benchmark::State& state, const std::string& precision) {
  constexpr int kLayers = 8;
  constexpr double kModelLayers = 32;
  Backend* gpu = Gpu();
  if (gpu == nullptr) return state.SkipWithError("no GPU");
  const int64_t rows = state.range(0);
  const LinearSpec spec = SpecOf(precision);
  std::vector<std::unique_ptr<Op>> ops;
  int64_t bytes = 0;
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    const uint64_t s = layer * 100;
    ops.push_back(MakeOp(*gpu, spec, {4096, 1024, 1024}, kHidden, rows, Prologue::kRmsNorm, false, s + 10));
    ops.push_back(MakeOp(*gpu, spec, {4096}, kHidden, rows, Prologue::kNone, true, s + 20));
    ops.push_back(MakeOp(*gpu, spec, {kIntermediate, kIntermediate}, kHidden, rows, Prologue::kRmsNorm, false, s + 30));
    ops.push_back(MakeOp(*gpu, spec, {4096}, kIntermediate, rows, Prologue::kSiluMul, true, s + 40));
  }
  for (const auto& op : ops) bytes += op->bytes;
  const std::string key = GraphKey("d" + precision + "n" + std::to_string(rows));
  for (auto _ : state) {
    const double seconds = TimeRounds(*gpu, key, [&] {
      for (const auto& op : ops) gpu->Linear(op->call);
    });
    Report(state, seconds * kModelLayers / kLayers,
           static_cast<int64_t>(static_cast<double>(bytes) * kModelLayers / kLayers), 0);
  }
}

int RegisterAll() {
  const int64_t shapes[][2] = {{4096, 4096}, {6144, 4096}, {28672, 4096}, {14336, 4096}, {4096, 14336}, {8192, 28672}};
  for (const std::string precision : {"sc", "sc256", "sc64", "fp16"}) {
    for (const auto& shape : shapes) {
      const int64_t m = shape[0];
      const int64_t k = shape[1];
      auto* bench = benchmark::RegisterBenchmark(
          ("matrix/" + precision + "/" + std::to_string(m) + "x" + std::to_string(k)).c_str(),
          [=](benchmark::State& state) { BM_Matrix(state, precision, m, k); });
      for (const int64_t rows : {1, 2, 4, 8, 16, 32, 64}) bench->Arg(rows);
      if (precision == "sc" || precision == "sc256")
        bench->Arg(512);  // the published simulator's shapes (bench/results/README.md)
      bench->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);
    }
    auto* step = benchmark::RegisterBenchmark(("decode/" + precision).c_str(),
                                              [=](benchmark::State& state) { BM_DecodeLinears(state, precision); });
    for (const int64_t rows : {1, 2, 4, 8, 16, 32}) step->Arg(rows);
    step->UseManualTime()->Iterations(3)->Unit(benchmark::kMillisecond);
  }
  for (const std::string precision : {"fixed", "fp32", "fp16"}) {
    auto* head =
        benchmark::RegisterBenchmark(("head/" + precision + "/128256x4096").c_str(),
                                     [=](benchmark::State& state) { BM_Matrix(state, precision, 128256, 4096); });
    for (const int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048}) head->Arg(rows);
    head->UseManualTime()->Iterations(3)->Unit(benchmark::kMicrosecond);
  }
  return 0;
}
const int registered = RegisterAll();

}  // namespace
}  // namespace stoch
