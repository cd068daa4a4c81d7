// SPDX-License-Identifier: Apache-2.0
// Biases of linears, RMSNorm of each head of q and k, GELU times another matrix, and soft caps (AddBiasCall,
// NormHeadsCall, GeluMulCall, SoftCapCall), all in place.
#include <algorithm>

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/prologue/functions.h"
#include "kernels/cuda/runtime/for_each.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/ops.h"
#include "kernels/family_check.h"
#include "kernels/math/elementary.h"
#include "kernels/math/gated.h"
#include "kernels/math/reduce.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeadsPerBlock = kThreads / kWarp;
constexpr int kLanesPerThread = kRowLanes / kWarp;
constexpr int64_t kMaxGridY = 32768;  // rows of one launch: gridDim.y is limited to 65535

// x[row][col] += bias[col], one thread per element (LaunchForEach); stride: floats from one row of x to the next.
struct BiasAdder {
  float* x;
  int64_t stride;
  const float* bias;
  int64_t cols;
  SiteReporter reporter;

  __device__ void operator()(int64_t i) const {
    float* at = x + i / cols * stride + i % cols;
    *at = *at + bias[i % cols];
  }
};

// GeluMulCall: x = GeluTanh(x) * x2, one thread per element (LaunchForEach). Strides are in floats.
struct GeluMultiplier {
  float* x;
  const float* x2;
  int64_t stride, stride2;
  int64_t cols;
  SiteReporter reporter;

  __device__ void operator()(int64_t i) const {
    float* at = x + i / cols * stride + i % cols;
    *at = GeluTanh(*at) * x2[i / cols * stride2 + i % cols];
  }
};

// SoftCapCall: x = SoftCap(x, cap), one thread per element (LaunchForEach). stride: floats from one row of x to the
// next.
struct SoftCapper {
  float* x;
  int64_t stride;
  int64_t cols;
  float cap;
  SiteReporter reporter;

  __device__ void operator()(int64_t i) const {
    float* at = x + i / cols * stride + i % cols;
    *at = SoftCap(*at, cap);
  }
};

// Arguments of NormHeadsKernel. Heads are numbered over q first, then k.
struct HeadArgs {
  // Rows of q and k in device memory; strides are floats from one row to the next. q_weight, k_weight: [head_dim].
  float* q = nullptr;
  float* k = nullptr;
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  const float* q_weight = nullptr;
  const float* k_weight = nullptr;
  int q_heads = 0;
  int heads = 0;  // heads of q plus heads of k
  int head_dim = 0;
  float eps = 0;
  SiteReporter reporter;
};

// RMSNorm of every head, in place. One warp per head, blockIdx.y is the row. Thread j sums the lanes j, j + 32, ... of
// the kRowLanes lanes of a sum (kernels/math/reduce.h).
__global__ void __launch_bounds__(kThreads) NormHeadsKernel(const HeadArgs args) {
  StartNext();
  WaitForPrevious();
  args.reporter.Begin();
  const int head = static_cast<int>(blockIdx.x) * kHeadsPerBlock + static_cast<int>(threadIdx.x) / kWarp;
  if (head >= args.heads) return;  // uniform in a warp, so the shuffles below have all lanes
  const bool is_q = head < args.q_heads;
  const int64_t row = blockIdx.y;
  const int64_t n = args.head_dim;
  float* x = is_q ? args.q + row * args.q_stride + head * n : args.k + row * args.k_stride + (head - args.q_heads) * n;
  const float* weight = is_q ? args.q_weight : args.k_weight;
  const int j = static_cast<int>(threadIdx.x) % kWarp;

  float lanes[kLanesPerThread] = {};
  for (int64_t first = j; first < n; first += kRowLanes) {
#pragma unroll
    for (int k = 0; k < kLanesPerThread; ++k) {
      const int64_t i = first + k * kWarp;
      if (i < n) lanes[k] = Fma(x[i], x[i], lanes[k]);
    }
  }
  float sum = FoldLanes<kLanesPerThread>(lanes);
  // Both lanes of a shuffle add the same two numbers and a + b equals b + a, so every thread ends with the total.
#pragma unroll
  for (int s = kWarp / 2; s > 0; s /= 2) sum = sum + __shfl_xor_sync(kAllLanes, sum, s);
  const float mean = sum / static_cast<float>(args.head_dim);
  const float r = 1.0f / Sqrt(mean + args.eps);
  for (int64_t i = j; i < n; i += kWarp) x[i] = (x[i] * r) * weight[i];
}

}  // namespace

void LaunchAddBias(DeviceContext& ctx, const AddBiasCall& call) {
  CheckAddBias(call);
  LaunchForEach(ctx, call.x.numel(),
                BiasAdder{call.x.ptr<float>(), call.x.step(0), call.bias.ptr<const float>(), call.x.dim(1),
                          ctx.Reporter(call.site)});
}

void LaunchGeluMul(DeviceContext& ctx, const GeluMulCall& call) {
  CheckGeluMul(call);
  LaunchForEach(ctx, call.x.numel(),
                GeluMultiplier{call.x.ptr<float>(), call.x2.ptr<const float>(), call.x.step(0), call.x2.step(0),
                               call.x.dim(1), ctx.Reporter(call.site)});
}

void LaunchSoftCap(DeviceContext& ctx, const SoftCapCall& call) {
  CheckSoftCap(call);
  LaunchForEach(ctx, call.x.numel(),
                SoftCapper{call.x.ptr<float>(), call.x.step(0), call.x.dim(1), call.cap, ctx.Reporter(call.site)});
}

void LaunchNormHeads(DeviceContext& ctx, const NormHeadsCall& call) {
  CheckNormHeads(call);
  if (call.table != nullptr) return LaunchNormHeadsByTable(ctx, call);
  HeadArgs args;
  args.q_stride = call.q.step(0);
  args.k_stride = call.k.step(0);
  args.q_weight = call.q_weight.ptr<const float>();
  args.k_weight = call.k_weight.ptr<const float>();
  args.head_dim = static_cast<int>(call.head_dim);
  args.q_heads = static_cast<int>(call.q.dim(1) / call.head_dim);
  args.heads = args.q_heads + static_cast<int>(call.k.dim(1) / call.head_dim);
  args.eps = call.eps;
  args.reporter = ctx.Reporter(call.site);
  if (args.heads == 0) return;
  const auto blocks = static_cast<unsigned>((args.heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
  for (int64_t first = 0; first < call.q.dim(0); first += kMaxGridY) {
    const auto rows = static_cast<unsigned>(std::min(kMaxGridY, call.q.dim(0) - first));
    args.q = call.q.ptr<float>() + first * args.q_stride;
    args.k = call.k.ptr<float>() + first * args.k_stride;
    LaunchOverlapped(ctx, NormHeadsKernel, dim3(blocks, rows), dim3(kThreads), 0, args);
  }
}

}  // namespace stoch::cuda
