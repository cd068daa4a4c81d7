// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/block_reduce.cuh"
#include "kernels/cuda/prologue/functions.h"

namespace stoch::cuda {
namespace {

constexpr int kThreads = kRowLanes;  // thread j sums lane j of a sum of squares (kernels/math/reduce.h)

// Arguments of FunctionKernel, which applies a function table to rows. A row has `groups` groups of `cols` numbers (the
// heads, or one group for the whole row), each normalized by itself. Strides are in floats.
struct FunctionArgs {
  NonlinearView table;
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t groups = 1;
  int64_t cols = 0;
  const float* weight = nullptr;  // RMSNorm weights [cols]; null: SiLU by table, times x2
  float eps = 0;
  const float* x2 = nullptr;
  int64_t x2_stride = 0;
  float* out = nullptr;  // may be x (in place)
  int64_t out_stride = 0;
  SiteReporter reporter;
};

// Computes f of each group of each row with the function table: RMSNorm, or SiLU times x2. One block per group.
__global__ void __launch_bounds__(kThreads) FunctionKernel(const FunctionArgs args) {
  __shared__ float fold[kRowLanes];
  args.reporter.Begin();
  const int64_t row = blockIdx.x / args.groups;
  const int64_t group = blockIdx.x % args.groups;
  const float* x = args.x + row * args.x_stride + group * args.cols;
  float* out = args.out + row * args.out_stride + group * args.cols;
  if (args.weight == nullptr) {
    const float* x2 = args.x2 + row * args.x2_stride + group * args.cols;
    for (int64_t i = threadIdx.x; i < args.cols; i += kThreads) out[i] = args.table.At(x[i]) * x2[i];
    return;
  }
  float lane = 0.0f;
  for (int64_t i = threadIdx.x; i < args.cols; i += kThreads) lane = Fma(x[i], x[i], lane);
  const float mean = BlockFoldLanes(lane, fold) / static_cast<float>(args.cols);
  const float r = args.table.RsqrtAt(mean + args.eps);
  for (int64_t i = threadIdx.x; i < args.cols; i += kThreads) out[i] = (x[i] * r) * args.weight[i];
}

void Launch(DeviceContext& ctx, const FunctionArgs& args, int64_t rows) {
  if (rows * args.groups == 0) return;
  FunctionKernel<<<static_cast<unsigned>(rows * args.groups), kThreads, 0, ctx.stream>>>(args);
  STOCH_CUDA_LAUNCH("FunctionKernel");
}

}  // namespace

TensorView LaunchFunction(DeviceContext& ctx, Scratch& scratch, const LinearCall& rows) {
  ctx.row_channel().Settle();  // this kernel reads x from memory, not as posted words
  FunctionArgs args;
  args.table = ctx.tables.Function(rows.table);
  args.x = rows.x.ptr<const float>();
  args.x_stride = rows.x.step(0);
  args.cols = rows.x.dim(1);
  switch (rows.prologue) {
    case Prologue::kNone: STOCH_CHECK(false); break;  // kNone has no table
    case Prologue::kRmsNorm:
      args.weight = rows.norm_weight.ptr<const float>();
      args.eps = rows.norm_eps;
      break;
    case Prologue::kSiluMul:
      args.x2 = rows.x2.ptr<const float>();
      args.x2_stride = rows.x2.step(0);
      break;
  }
  args.out = scratch.Take<float>(rows.x.dim(0) * args.cols);
  args.out_stride = args.cols;
  args.reporter = ctx.Reporter(rows.site);
  Launch(ctx, args, rows.x.dim(0));
  return MakeView(args.out, DType::kF32, ctx.device, rows.x.dim(0), args.cols);
}

void LaunchNormHeadsByTable(DeviceContext& ctx, const NormHeadsCall& call) {
  FunctionArgs args;
  args.table = ctx.tables.Function(call.table);
  args.cols = call.head_dim;
  args.eps = call.eps;
  args.reporter = ctx.Reporter(call.site);
  const auto norm = [&](const TensorView& x, const TensorView& weight) {
    args.out = x.ptr<float>();
    args.x = args.out;
    args.x_stride = args.out_stride = x.step(0);
    args.groups = x.dim(1) / call.head_dim;
    args.weight = weight.ptr<const float>();
    Launch(ctx, args, x.dim(0));
  };
  norm(call.q, call.q_weight);
  norm(call.k, call.k_weight);
}

}  // namespace stoch::cuda
