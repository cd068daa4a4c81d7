// SPDX-License-Identifier: Apache-2.0
// Instances and launches of the prefill kernel (prefill_wgmma.cuh) over rows sorted by the group of their stream length
// (row_groups.h).
#include "kernels/cuda/sc/hopper/prefill_wgmma.cuh"
#include "kernels/cuda/sc/hopper/row_group_kernels.h"

namespace stoch::cuda {
namespace {

template <int kWords, int kHalves, bool kTable, bool kMixed>
const void* Kernel() {
  return reinterpret_cast<const void*>(prefill::PrefillWgmmaKernel<kWords, kHalves, kTable, kMixed, RowGroupArgs>);
}

// The kernel for streams of one half (up to 128 cycles).
template <int kWords>
const void* OneHalf(const RowGroupArgs& args) {
  if (args.ranks != nullptr) return Kernel<kWords, 1, true, true>();
  return args.mixed ? Kernel<kWords, 1, false, true>() : Kernel<kWords, 1, false, false>();
}

const void* KernelOf(const RowGroupArgs& args) {
  // Streams of two halves (more than 128 cycles) have at least three words a half.
  if (args.streams.halves == 2) {
    return args.streams.words == 3 ? Kernel<3, 2, true, true>() : Kernel<4, 2, true, true>();
  }
  switch (args.streams.words) {
    case 1: return OneHalf<1>(args);
    case 2: return OneHalf<2>(args);
    case 3: return OneHalf<3>(args);
    default: return OneHalf<4>(args);
  }
}

const void* KernelOf(DeviceContext& ctx, const LinearPlan& plan, const RowGroupArgs& args) {
  STOCH_CHECK(args.mixed || args.ranks == nullptr);
  const void* kernel = KernelOf(args);
  prefill::AllowLaunch(ctx, kernel, plan, prefill::StageBytes(args.streams, args.mixed));
  return kernel;
}

}  // namespace

int64_t MaxRowGroupClusters(DeviceContext& ctx, const LinearPlan& plan, const RowGroupArgs& args) {
  return prefill::MaxClusters(KernelOf(ctx, plan, args), plan);
}

void LaunchRowGroupWgmma(DeviceContext& ctx, const LinearPlan& plan, const RowGroupArgs& args, int clusters) {
  prefill::Launch(ctx, KernelOf(ctx, plan, args), plan, args, clusters);
}

}  // namespace stoch::cuda
