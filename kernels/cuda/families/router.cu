// SPDX-License-Identifier: Apache-2.0
// The router of a mixture of experts (RouteCall): softmax over the experts' logits and choice of the top_k. For a few
// rows one kernel also does the RMSNorm and the product that make the logits.
#include "kernels/call_check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/dispatch.h"
#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/exchange.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/families/router_choice.cuh"
#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/prologue/norm_factor.cuh"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/ops.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/family_check.h"
#include "kernels/plan/divide_up.h"
#include "kernels/plan/router.h"

namespace stoch::cuda {
namespace {

// ---- softmax and choice, from logits in memory ----

constexpr int kThreads = kRowLanes;

// Does the softmax and the choice of top_k experts for each row. One warp per row. kIsLong: any number of experts; else
// at most kWarpRouterExperts, whose probabilities the warp holds in registers.
template <bool kIsLong>
__global__ void __launch_bounds__(kThreads) RouteKernel(const RouteArgs args, int64_t rows) {
  StartNext();
  WaitForPrevious();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= rows) return;
  if constexpr (kIsLong) {
    RouteLongRow(args, row);
  } else {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    float logits[kHeldLanes] = {};
#pragma unroll
    for (int k = 0; k < kHeldLanes; ++k) {
      if (lane + k * kWarp < args.experts) logits[k] = args.logits[row * args.experts + lane + k * kWarp];
    }
    RouteRow(args, row, logits);
  }
}

// ---- RMSNorm, product, softmax and choice of a few rows in one kernel ----

constexpr int kMaxRows = kMaxFusedRouterRows;
// A half warp computes the logit of one expert, each thread one lane of the dot products. Blocks are few and large: the
// linear kernel before leaves a few SMs without a block (4 of 132 for Qwen3-30B-A3B), and on those the blocks of this
// kernel load their weights while the linear still runs.
constexpr int kProductThreads = kBlockThreads;
constexpr int kBlockExperts = kProductThreads / kDotLanes;
static_assert(kBlockExperts == kFusedRouterExperts);
static_assert(kMaxRows * kRowLanes * sizeof(float) == kFusedRouterStaticBytes);
constexpr int kAhead = 16;  // 16-byte weight loads that a thread keeps in flight

struct RouterArgs {
  RouteArgs route;
  bool by_block = false;       // RouterRoute::kFusedBlock: all threads of block 0 choose; else a warp per row
  const void* data = nullptr;  // router weights [experts][padded_cols], of type T
  // Activations x [rows][x_stride] before the norm; norm_weight [cols]; x_stride in floats.
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* norm_weight = nullptr;
  float norm_eps = 0;
  // Output [rows][experts], besides the choice in `route`.
  float* logits = nullptr;
  int rows = 0;
  int cols = 0;
  int padded_cols = 0;
  // [rows][experts]: logits as posted words (exchange.cuh); 0 before and after the kernel.
  uint32_t* words = nullptr;
  SiteReporter reporter;
};

// Writes f(x) of all rows to shared memory in the order in which the products read it,
// [row][group of columns][kVector / 4][lane][4]; a group is kDotLanes * kVector columns. Adjacent lanes read adjacent
// 16 bytes, and 8 lanes read what shared memory delivers in one cycle. Called by the whole block. lanes: partial sums
// of squares of each row, [kRows][kRowLanes].
template <int kVector, int kRows>
__device__ __forceinline__ void StageRows(const RouterArgs& args, const float* norm, const float (*lanes)[kRowLanes],
                                          float* xs) {
  bool finite = true;
#pragma unroll 1
  for (int n = 0; n < kRows; ++n) {
    const bool exists = n < args.rows;
    const float r = exists ? FoldNorm(lanes[n], args.cols, args.norm_eps) : 0.0f;
    const float* x = args.x + n * args.x_stride;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < args.padded_cols; i += kProductThreads) {
      const bool used = exists && i < args.cols;
      const float value = used ? ApplyPrologue(Prologue::kRmsNorm, __ldcg(x + i), norm[i], r) : 0.0f;
      finite = finite && IsFinite(value);
      const int step = i / kDotLanes;
      const int quad = step / 4;  // index of a group of four among this lane's elements
      xs[n * args.padded_cols + (quad * kDotLanes + i % kDotLanes) * 4 + step % 4] = value;
    }
  }
  if (!finite) args.reporter.Report();
}

// Polls the logits of a row in args.words, zeroes those words, and does the row's softmax and choice. One warp.
__device__ __forceinline__ void ReceiveAndRoute(const RouterArgs& args, int row) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  uint32_t* words = args.words + row * args.route.experts + lane;
  const int held = (args.route.experts - lane + kWarp - 1) / kWarp;
  uint32_t got[kHeldLanes];
#pragma unroll
  for (int k = 0; k < kHeldLanes; ++k) got[k] = k < held ? 0 : SumWord(0.0f);
  ReceiveAll(words, kWarp, got);
  float logits[kHeldLanes];
#pragma unroll
  for (int k = 0; k < kHeldLanes; ++k) {
    logits[k] = FromSumWord(got[k]);
    if (k < held) words[k * kWarp] = 0;
  }
  __syncwarp();
  RouteRow(args.route, row, logits);
}

// Logits, softmax and choice of up to kRows rows. A block has kBlockExperts experts, a half warp per expert. kPolls:
// the one row x is polled as words that the kernel before posts (handover/row_channel.h), instead of read from memory.
template <typename T, int kRows, bool kPolls>
__global__ void __launch_bounds__(kProductThreads, 1) RouterKernel(const __grid_constant__ RouterArgs args) {
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kBlockCols = kDotLanes * kVector;  // columns that the kDotLanes lanes cover with one 16-byte load each
  extern __shared__ __align__(16) float norm[];    // RMSNorm weights [padded_cols], then f(x) [kRows][padded_cols]
  __shared__ float lanes[kRows][kRowLanes];
  float* xs = norm + args.padded_cols;
  const int lane = static_cast<int>(threadIdx.x) % kDotLanes;
  const int expert = static_cast<int>(blockIdx.x) * kBlockExperts + static_cast<int>(threadIdx.x) / kDotLanes;
  const int blocks = args.padded_cols / kBlockCols;
  const T* weights = static_cast<const T*>(args.data) +
                     static_cast<int64_t>(min(expert, args.route.experts - 1)) * args.padded_cols + lane * kVector;
  uint4 bits[kAhead];
  const auto load = [&](int first) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (first + k < blocks) bits[k] = LoadStreaming(weights + (first + k) * kBlockCols);
    }
  };
  load(0);  // weights do not depend on earlier kernels, so they load before WaitForPrevious
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < args.cols; i += kProductThreads)
    norm[i] = __ldg(args.norm_weight + i);
  if constexpr (kPolls) {
    PostedLane posted;
    const int j = static_cast<int>(threadIdx.x);
    const auto* words = reinterpret_cast<const uint32_t*>(args.x);
    if (j < kRowLanes) posted.Look(words + j, args.cols - j);
    ReceiveNormLanes(posted, words, args.cols, lanes[0]);
  }
  WaitForPrevious();
  StartNext();  // not earlier: the next kernel may read x before its own WaitForPrevious (DeviceContext::Settle)
  args.reporter.Begin();
  if (args.route.post.words != nullptr) {
    ClearRow(args.route.post, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  }
  for (int n = static_cast<int>(threadIdx.x) / kRowLanes; !kPolls && n < args.rows; n += kProductThreads / kRowLanes) {
    NormLane<1>({args.x + n * args.x_stride}, args.cols, static_cast<int>(threadIdx.x) % kRowLanes, {lanes[n]});
  }
  __syncthreads();
  StageRows<kVector, kRows>(args, norm, lanes, xs);
  __syncthreads();

  float acc[kRows] = {};
  for (int first = 0; first < blocks; first += kAhead) {
    if (first > 0) load(first);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (first + k >= blocks) break;
      float w[kVector];
      Expand(bits[k], w, T());
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        const auto* from = reinterpret_cast<const float4*>(xs + n * args.padded_cols + (first + k) * kBlockCols) + lane;
#pragma unroll
        for (int v = 0; v < kVector; v += 4) {
          const float4 x = from[v / 4 * kDotLanes];
          acc[n] = Fma(x.x, w[v], acc[n]);
          acc[n] = Fma(x.y, w[v + 1], acc[n]);
          acc[n] = Fma(x.z, w[v + 2], acc[n]);
          acc[n] = Fma(x.w, w[v + 3], acc[n]);
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    float y = acc[n];
#pragma unroll
    for (int s = kDotLanes / 2; s > 0; s /= 2) y = y + __shfl_down_sync(kAllLanes, y, s, kDotLanes);
    if (lane != 0 || n >= args.rows || expert >= args.route.experts) continue;
    y = PlusZero(y);
    if (!IsFinite(y)) args.reporter.Report();
    args.logits[n * args.route.experts + expert] = y;
    Post(args.words + n * args.route.experts + expert, SumWord(y));
  }

  // Block 0, or one warp per row, receives the logits of all blocks and makes the choice.
  if constexpr (kRows == 1) {
    __shared__ BlockChoice choice;
    if (args.by_block) {
      if (blockIdx.x == 0) RouteByBlock(args.route, args.words, choice);
      return;
    }
  }
  const int row = static_cast<int>(threadIdx.x) / kWarp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  if (row < args.rows) ReceiveAndRoute(args, row);
}

const CudaLinear& RouterOf(const LinearCall& product) { return static_cast<const CudaLinear&>(*product.weights[0]); }

RouterShape ShapeOf(const RouteCall& call) {
  RouterShape shape{.rows = call.logits.dim(0), .experts = call.logits.dim(1), .top_k = call.chosen.dim(1)};
  const LinearCall* product = call.product;
  if (product != nullptr && product->weights.size() == 1 && RouterOf(*product).spec().precision == Precision::kFp32 &&
      !product->add_to_out && product->prologue == Prologue::kRmsNorm && product->table == nullptr) {
    shape.product_cols = RouterOf(*product).view<ExactWeightView>().padded_cols;
  }
  return shape;
}

void LaunchFused(DeviceContext& ctx, const RouterPlan& plan, const LinearCall& product, const RouteArgs& route) {
  const auto& w = RouterOf(product).view<ExactWeightView>();
  RouterArgs args;
  args.route = route;
  args.by_block = plan.route == RouterRoute::kFusedBlock;
  args.data = w.data;
  args.x = product.x.ptr<const float>();
  args.x_stride = product.x.step(0);
  args.norm_weight = product.norm_weight.ptr<const float>();
  args.norm_eps = product.norm_eps;
  args.logits = product.outs[0].ptr<float>();
  args.rows = static_cast<int>(product.x.dim(0));
  args.cols = static_cast<int>(w.cols);
  args.padded_cols = static_cast<int>(w.padded_cols);
  args.words = ctx.words();
  args.reporter = ctx.Reporter(product.site);
  RowChannel& rows = ctx.row_channel();
  const uint32_t* posted = args.rows == 1 ? rows.Poll(args.x, args.cols).words : nullptr;
  const float* const settled = args.x;
  if (posted != nullptr) args.x = reinterpret_cast<const float*>(posted);
  RowOutputs outputs;
  if (args.by_block) {
    outputs.words = route.top_k;
    outputs.Add({reinterpret_cast<const float*>(route.chosen), route.top_k, 0});
  }
  const auto shared_bytes = static_cast<size_t>(plan.shared_bytes);
  const auto blocks = static_cast<unsigned>((route.experts + kBlockExperts - 1) / kBlockExperts);
  DispatchFloat(w.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto kernel = posted != nullptr ? RouterKernel<T, 1, true>
                        : args.rows == 1  ? RouterKernel<T, 1, false>
                                          : RouterKernel<T, kMaxRows, false>;
    AllowShared(ctx, kernel, shared_bytes);
    rows.Post(outputs, ctx.posts_rows, {}, [&](const RowPost& post, const PostPeers& /*peers*/) {
      args.route.post = post;
      LaunchOverlapped(ctx, kernel, dim3(blocks), dim3(kProductThreads), shared_bytes, args);
    });
  });
  ctx.Settle(settled);
}

}  // namespace

void LaunchRoute(DeviceContext& ctx, const RouteCall& call) {
  CheckRoute(call);
  RouteArgs args;
  args.logits = call.logits.ptr<const float>();
  args.chosen = call.chosen.ptr<int32_t>();
  args.weights = call.weights.ptr<float>();
  args.experts = static_cast<int>(call.logits.dim(1));
  args.top_k = static_cast<int>(call.chosen.dim(1));
  args.normalize = call.normalize;
  const int64_t rows = call.logits.dim(0);
  if (rows == 0) return;
  const RouterPlan plan = PlanRouter(ctx.traits, ShapeOf(call));
  if (plan.is_fused()) return LaunchFused(ctx, plan, *call.product, args);
  if (call.product != nullptr) LaunchLinear(ctx, *call.product);
  const auto blocks = static_cast<unsigned>(DivideUp(rows, kThreads / kWarp));
  const auto kernel = plan.route == RouterRoute::kLongRows ? RouteKernel<true> : RouteKernel<false>;
  LaunchOverlapped(ctx, kernel, dim3(blocks), dim3(kThreads), 0, args, rows);
}

}  // namespace stoch::cuda
