// SPDX-License-Identifier: Apache-2.0
// What launch discipline costs: the device guard, and an op of a backend (guard, view checks, launch) next to its bare
// launch of the same kernel. A decode step replays a graph: it makes a handful of guards and checks no view; a pass
// that is not recorded makes one of each for every op.
#include <benchmark/benchmark.h>

#include <memory>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/registry.h"

namespace stoch {
namespace {

constexpr int64_t kCols = 4096;
constexpr int kLaunches = 256;  // between two waits: fewer than a stream holds

Device Gpu(int index) { return {DeviceKind::kCuda, index}; }

void Guard(benchmark::State& state, int current, int wanted) {
  const cuda::DeviceGuard outer(Gpu(current));
  STOCH_CUDA(cudaFree(nullptr));  // makes the context: without one every call looks for it
  for (auto _ : state) {
    const cuda::DeviceGuard guard(Gpu(wanted));
    benchmark::ClobberMemory();
  }
}

// One row of x copied to another, as SelectRows does in a decode step.
struct Rows {
  Rows() : backend(OpenBackend("cuda:0", {}, nullptr)) {
    PassLayout layout;
    layout.ids = {1};
    const int32_t page = 0;
    layout.sequences.push_back({0, 1, 0, {&page, 1}});
    layout.output_rows = {0};
    pass = backend->MakePass(Gpu(0), {1, 1, 1});
    backend->UploadPass(*pass, layout);
    from = backend->Allocate(Gpu(0), kCols * 4);
    to = backend->Allocate(Gpu(0), kCols * 4);
    index = backend->Allocate(Gpu(0), 4);
    backend->Synchronize(Gpu(0));
  }
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Pass> pass;
  Buffer from, to, index;
};

// Time of one launch on the host; the device follows behind.
template <typename Launch, typename Wait>
void Submit(benchmark::State& state, const Launch& launch, const Wait& wait) {
  while (state.KeepRunningBatch(kLaunches)) {
    for (int i = 0; i < kLaunches; ++i) launch();
    state.PauseTiming();
    wait();
    state.ResumeTiming();
  }
}

void Op(benchmark::State& state) {
  Rows rows;
  const TensorView from = MakeView(rows.from.data(), DType::kF32, Gpu(0), 1, kCols);
  const TensorView to = MakeView(rows.to.data(), DType::kF32, Gpu(0), 1, kCols);
  Submit(
      state, [&] { rows.backend->SelectRows(*rows.pass, from, to); }, [&] { rows.backend->Synchronize(Gpu(0)); });
}

void Bare(benchmark::State& state) {
  Rows rows;
  cuda::DeviceContext ctx(0);
  const cuda::DeviceGuard guard(Gpu(0));
  Submit(
      state,
      [&] {
        cuda::LaunchSelectRows(ctx, static_cast<const float*>(rows.from.data()), kCols,
                               static_cast<const int32_t*>(rows.index.data()), 1, kCols,
                               static_cast<float*>(rows.to.data()), kCols);
      },
      [&] { STOCH_CUDA(cudaStreamSynchronize(ctx.stream)); });
}

}  // namespace
}  // namespace stoch

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  if (devices == 0) {
    benchmark::RegisterBenchmark("guard/same", [](benchmark::State& s) { s.SkipWithError("no GPU"); });
  }
  if (devices > 0) {
    benchmark::RegisterBenchmark("guard/same", [](benchmark::State& s) { stoch::Guard(s, 0, 0); });
    benchmark::RegisterBenchmark("gather_rows/op", stoch::Op);
    benchmark::RegisterBenchmark("gather_rows/launch", stoch::Bare);
  }
  if (devices > 1) {
    benchmark::RegisterBenchmark("guard/other", [](benchmark::State& s) { stoch::Guard(s, 0, 1); });
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
