// SPDX-License-Identifier: Apache-2.0
// Backend::ScMatmul on a GPU: two operands of floats, quantized on the fly, by the plain product whatever the setting. Shapes of a
// linear of 8B for one token and for 128, and of q k and p v of a head, 32 of them in a batch.
//
// Before timing, a product of the same setting is compared with the CPU's bits. Calls are issued back to back, without a graph.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "bench/kernels/gpu.h"
#include "kernels/math/random.h"
#include "kernels/registry.h"
#include "kernels/sc/sc_config.h"

namespace stoch {
namespace {

struct Shape {
  const char* name;
  int64_t batch, n, m, d;  // out [batch, n, m] = a [batch, n, d] @ b [batch, m, d]^T
};
constexpr Shape kShapes[] = {
    {"linear/1", 1, 1, 4096, 4096},
    {"linear/128", 1, 128, 4096, 4096},
    {"qk/512", 32, 512, 512, 128},
    {"pv/512", 32, 512, 128, 512},
};
constexpr Shape kCompared{"compared", 2, 9, 70, 300};

ScOperatorPtr OperatorOf(const std::string& setting) {
  ScConfig config;
  config.halve = true;
  if (setting == "gate=xnor") {
    SetScParameter(config, "gate", "xnor");
    SetScParameter(config, "halve", "0");
  } else if (setting == "mode=unipolar") {
    SetScParameter(config, "mode", "unipolar");
    SetScParameter(config, "halve", "0");
  }
  return MakeScOperator(config);
}

struct Operand {
  Buffer buffer;
  TensorView view;
};

Operand MakeOperand(Backend& backend, int64_t batch, int64_t rows, int64_t cols, uint64_t seed) {
  Operand operand;
  std::vector<float> values(static_cast<size_t>(batch * rows * cols));
  for (size_t i = 0; i < values.size(); ++i) values[i] = RandomWeight(seed, 0, i, 1.0f);
  operand.buffer = backend.Allocate(backend.devices()[0], batch * rows * cols * 4);
  operand.view = MakeView(operand.buffer.data(), DType::kF32, backend.devices()[0], batch, rows, cols);
  backend.CopyFromHost(operand.view, values.data());
  return operand;
}

struct Product {
  Product(Backend& backend, const Shape& shape)
      : a(MakeOperand(backend, shape.batch, shape.n, shape.d, 1)),
        b(MakeOperand(backend, shape.batch, shape.m, shape.d, 2)),
        out(MakeOperand(backend, shape.batch, shape.n, shape.m, 3)) {}

  std::vector<float> Run(Backend& backend, const ScOperator& op) {
    backend.ScMatmul(a.view, b.view, op, out.view);
    std::vector<float> values(static_cast<size_t>(out.view.numel()));
    backend.CopyToHost(values.data(), out.view);
    return values;
  }

  Operand a, b, out;
};

bool HasBitsOfCpu(Backend& gpu, const ScOperator& op) {
  static const auto cpu = OpenBackend("cpu", {}, nullptr);
  const std::vector<float> expected = Product(*cpu, kCompared).Run(*cpu, op);
  const std::vector<float> actual = Product(gpu, kCompared).Run(gpu, op);
  return std::memcmp(expected.data(), actual.data(), expected.size() * sizeof(float)) == 0;
}

void BM_Matmul(benchmark::State& state, const std::string& setting, const Shape& shape) {
  Backend* gpu = Gpu();
  if (gpu == nullptr) return state.SkipWithError("no GPU");
  const ScOperatorPtr op = OperatorOf(setting);
  if (!HasBitsOfCpu(*gpu, *op)) return state.SkipWithError("bits differ from the CPU's");
  const Device device = gpu->devices()[0];
  Product product(*gpu, shape);
  constexpr int kCalls = 5;
  const auto calls = [&] {
    for (int i = 0; i < kCalls; ++i) gpu->ScMatmul(product.a.view, product.b.view, *op, product.out.view);
    gpu->Synchronize(device);
  };
  calls();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    calls();
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kCalls);
  }
}

const bool kRegistered = [] {
  for (const char* setting : {"halved", "gate=xnor", "mode=unipolar"}) {
    for (const Shape& shape : kShapes) {
      benchmark::RegisterBenchmark((std::string("matmul/") + setting + "/" + shape.name).c_str(),
                                   [setting, shape](benchmark::State& state) { BM_Matmul(state, setting, shape); })
          ->UseManualTime()
          ->Iterations(10)
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace stoch
