// SPDX-License-Identifier: Apache-2.0
// SC linears of many tokens on a GPU (streams and product, quantization apart) next to cuBLAS fp16 of the same shape.
//
// Before timing, the output is compared with the definition at random places and, whole, with the other path's.
// Counters: share of the binary tensor floor (docs/fast-kernels.md#prompts) and times cuBLAS fp16, measured in turn.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/sc/tiles/tiles.h"
#include "kernels/math/random.h"

namespace stoch::cuda {
namespace {

constexpr double kBitsPerSecond = 7.8e15;  // wgmma b1 on an H200

DeviceContext* Gpu() {
  static std::unique_ptr<DeviceContext> context = [] {
    int count = 0;
    const bool there = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
    return there ? std::make_unique<DeviceContext>(0) : nullptr;
  }();
  return context.get();
}

// Codes spread as a quantizer's of near-normal numbers: bits that toggle as in use, which zeros would not.
std::vector<uint8_t> RandomCodes(uint64_t stream, int64_t count, int levels) {
  std::vector<uint8_t> codes(static_cast<size_t>(count));
  for (size_t i = 0; i < codes.size(); ++i) {
    const float x = RandomWeight(1, stream, i, static_cast<float>(levels) / 4);
    const int level = std::min(static_cast<int>(std::abs(x)), levels - 1);
    codes[i] = static_cast<uint8_t>(level | (x < 0 && level > 0 ? 0x80 : 0));
  }
  return codes;
}

std::vector<float> RandomScales(uint64_t stream, int64_t count) {
  std::vector<float> scales(static_cast<size_t>(count));
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.01f + std::abs(RandomWeight(1, stream, i, 0.01f));
  return scales;
}

struct Operands {
  ScDims dims;
  std::vector<uint8_t> a_codes, b_codes;
  std::vector<float> a_scales, b_scales;
  Buffer buffers[4];
  Buffer out;
  ScActivationView a;
  ScLinearTask task;
};

Operands MakeOperands(const ScOperator& op, int64_t n, int64_t m, int64_t d) {
  Operands o;
  o.dims = MakeScDims(d, op.config.chunk_d);
  o.a_codes = RandomCodes(1, n * o.dims.padded, op.levels);
  o.b_codes = RandomCodes(2, m * o.dims.padded, op.levels);
  o.a_scales = RandomScales(3, o.dims.chunks * n);
  o.b_scales = RandomScales(4, o.dims.chunks * m);
  o.buffers[0] = DeviceCopy(Gpu()->device, o.a_codes);
  o.buffers[1] = DeviceCopy(Gpu()->device, o.b_codes);
  o.buffers[2] = DeviceCopy(Gpu()->device, o.a_scales);
  o.buffers[3] = DeviceCopy(Gpu()->device, o.b_scales);
  o.out = AllocateDevice(Gpu()->device, static_cast<size_t>(n * m) * sizeof(float));
  o.a = {o.dims, n, static_cast<const uint8_t*>(o.buffers[0].data()), static_cast<const float*>(o.buffers[2].data())};
  o.task.weight = {o.dims, m, m, static_cast<const uint8_t*>(o.buffers[1].data()),
                   static_cast<const float*>(o.buffers[3].data())};
  o.task.out = {static_cast<float*>(o.out.data()), m, false};
  return o;
}

float Defined(const ScOperator& op, const Operands& o, int64_t n, int64_t m) {
  float y = 0;
  for (int64_t c = 0; c < o.dims.chunks; ++c) {
    int32_t acc = 0;
    for (int64_t i = 0; i < o.dims.chunk_dims(c); ++i) {
      const int64_t p = c * o.dims.chunk_stride + i;
      const uint8_t x = o.a_codes[static_cast<size_t>(n * o.dims.padded + p)];
      const uint8_t w = o.b_codes[static_cast<size_t>(o.task.weight.code_offset(m, p))];
      const int count = op.count(static_cast<int>(i) & (op.masks - 1), x & 0x7f, w & 0x7f);
      acc += ((x ^ w) & 0x80) != 0 ? -count : count;
    }
    const float scale = o.a_scales[static_cast<size_t>(c * o.a.tokens + n)] *
                        o.b_scales[static_cast<size_t>(c * o.task.weight.rows_padded + m)];
    y = y + (static_cast<float>(acc) * op.gain) * scale;
  }
  return y;
}

bool HasWgmma(const ScOperator& op) { return CanPrefillWgmma(Gpu()->traits, Gpu()->tables.Traits(op)); }

void Launch(const ScOperator& op, const Operands& o, bool wgmma) {
  DeviceContext& ctx = *Gpu();
  const ScTables& tables = ctx.tables.Get(op);
  const ScTraits& traits = ctx.tables.Traits(op);
  const int64_t rows = o.task.weight.rows;
  const LinearShape shape{o.a.tokens, o.a.dims.dims, {&rows, 1}};
  if (wgmma) return LaunchScPrefill(ctx, PlanScPrefill(ctx.traits, traits, shape), tables, o.a, &o.task, 1);
  LaunchScTiles(ctx, PlanScTiles(ctx.traits, traits, shape), op, o.a, {}, &o.task, 1);
}

std::vector<float> RunPath(const ScOperator& op, const Operands& o, bool wgmma) {
  DeviceContext& ctx = *Gpu();
  STOCH_CUDA(cudaMemsetAsync(o.out.data(), 0xff, o.out.bytes(), ctx.stream));
  Launch(op, o, wgmma);
  std::vector<float> out(o.out.bytes() / sizeof(float));
  STOCH_CUDA(cudaMemcpyAsync(out.data(), o.out.data(), o.out.bytes(), cudaMemcpyDeviceToHost, ctx.stream));
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  return out;
}

bool Verify(const ScOperator& op, const Operands& o) {
  const std::vector<float> fast = RunPath(op, o, HasWgmma(op));
  const std::vector<float> plain = RunPath(op, o, false);
  if (std::memcmp(fast.data(), plain.data(), fast.size() * sizeof(float)) != 0) return false;
  for (uint64_t i = 0; i < 64; ++i) {
    const uint64_t at = RandomBits(1, 5, i) % fast.size();
    const int64_t m = o.task.weight.rows;
    const float want = Defined(op, o, static_cast<int64_t>(at) / m, static_cast<int64_t>(at) % m);
    if (std::bit_cast<uint32_t>(want) != std::bit_cast<uint32_t>(fast[at])) return false;
  }
  return true;
}

template <typename F>
double MedianSeconds(const F& launch) {
  constexpr int kRuns = 9;
  DeviceContext& ctx = *Gpu();
  cudaEvent_t from, to;
  STOCH_CUDA(cudaEventCreate(&from));
  STOCH_CUDA(cudaEventCreate(&to));
  std::vector<float> ms(kRuns + 1);
  for (float& each : ms) {
    STOCH_CUDA(cudaEventRecord(from, ctx.stream));
    launch();
    STOCH_CUDA(cudaEventRecord(to, ctx.stream));
    STOCH_CUDA(cudaEventSynchronize(to));
    STOCH_CUDA(cudaEventElapsedTime(&each, from, to));
  }
  STOCH_CUDA(cudaEventDestroy(from));
  STOCH_CUDA(cudaEventDestroy(to));
  std::sort(ms.begin() + 1, ms.end());  // the first run warms up
  return ms[1 + kRuns / 2] * 1e-3;
}

double CublasSeconds(int64_t n, int64_t m, int64_t d) {
  DeviceContext& ctx = *Gpu();
  std::vector<uint16_t> halves(static_cast<size_t>(std::max(n, m) * d));
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<uint16_t>(0x3000 | (RandomBits(1, 6, i) & 0x8bff));  // +-0.125 and up
  }
  const Buffer x = DeviceCopy(Gpu()->device, halves);
  const Buffer w = DeviceCopy(Gpu()->device, halves);
  const Buffer y = AllocateDevice(ctx.device, static_cast<size_t>(n * m) * 2);
  const float one = 1, zero = 0;
  return MedianSeconds([&] {
    STOCH_CUBLAS(cublasGemmEx(ctx.cublas(), CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(m), static_cast<int>(n),
                              static_cast<int>(d), &one, w.data(), CUDA_R_16F, static_cast<int>(d), x.data(),
                              CUDA_R_16F, static_cast<int>(d), &zero, y.data(), CUDA_R_16F, static_cast<int>(m),
                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  });
}

void BM_Prefill(benchmark::State& state, bool wgmma, int stoc_len, int64_t m, int64_t d) {
  if (Gpu() == nullptr) return state.SkipWithError("no GPU");
  ScConfig config;
  config.chunk_d = 128;
  config.halve = stoc_len <= 128;
  config.stoc_len = stoc_len;
  const ScOperatorPtr op = MakeScOperator(config);
  const int64_t n = state.range(0);
  const Operands o = MakeOperands(*op, n, m, d);
  if (wgmma && !HasWgmma(*op)) return state.SkipWithError("no wgmma");
  if (!Verify(*op, o)) return state.SkipWithError("bits differ from the definition's");
  const double cublas = CublasSeconds(n, m, d);
  for (auto _ : state) {
    const double seconds = MedianSeconds([&] { Launch(*op, o, wgmma); });
    state.SetIterationTime(seconds);
    const double products = static_cast<double>(n) * static_cast<double>(m) * static_cast<double>(d);
    state.counters["of_floor"] = products * stoc_len / kBitsPerSecond / seconds;
    state.counters["x_fp16"] = seconds / cublas;
  }
}

int RegisterAll() {
  const int64_t shapes[][2] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
  for (const int stoc_len : {128, 64, 256}) {
    for (int i = 0; i < 8; ++i) {
      const bool wgmma = i < 4;
      const auto& shape = shapes[i % 4];
      const int64_t m = shape[0];
      const int64_t d = shape[1];
      const std::string name = (wgmma ? "prefill/L" : "tiles/L") + std::to_string(stoc_len) + "/" + std::to_string(m) +
                               "x" + std::to_string(d);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [=](benchmark::State& state) { BM_Prefill(state, wgmma, stoc_len, m, d); })
          ->Arg(32)
          ->Arg(64)
          ->Arg(256)
          ->Arg(2048)
          ->UseManualTime()
          ->Iterations(3)
          ->Unit(benchmark::kMillisecond);
    }
  }
  return 0;
}
const int registered = RegisterAll();

}  // namespace
}  // namespace stoch::cuda
