// SPDX-License-Identifier: Apache-2.0
// Instances and launches of the prefill kernel (prefill_wgmma.cuh) over the tokens of a call, and over slots of experts
// in tiles by expert (grouped.h).
#include <algorithm>

#include "kernels/cuda/sc/hopper/grouped_kernels.h"
#include "kernels/cuda/sc/hopper/prefill_kernels.h"
#include "kernels/cuda/sc/hopper/prefill_wgmma.cuh"

namespace stoch::cuda {
namespace {

using prefill::PrefillWgmmaKernel;

template <int kWords, int kHalves, bool kTable, typename Args = PrefillArgs>
const void* Kernel() {
  return reinterpret_cast<const void*>(PrefillWgmmaKernel<kWords, kHalves, kTable, false, Args>);
}

const void* KernelOf(const PrefillArgs& args) {
  const bool table = args.ranks != nullptr;
  // Streams of two halves (more than 128 cycles) have at least three words a half.
  if (args.streams.halves == 2) return args.streams.words == 3 ? Kernel<3, 2, true>() : Kernel<4, 2, true>();
  switch (args.streams.words) {
    case 1: return table ? Kernel<1, 1, true>() : Kernel<1, 1, false>();
    case 2: return table ? Kernel<2, 1, true>() : Kernel<2, 1, false>();
    case 3: return table ? Kernel<3, 1, true>() : Kernel<3, 1, false>();
    default: return table ? Kernel<4, 1, true>() : Kernel<4, 1, false>();
  }
}
const void* KernelOf(const GroupedArgs& args) {
  STOCH_CHECK(args.streams.halves == 1 && (args.streams.words == 2 || args.streams.words == 4));
  const bool table = args.ranks != nullptr;
  if (args.streams.words == 2) return table ? Kernel<2, 1, true, GroupedArgs>() : Kernel<2, 1, false, GroupedArgs>();
  return table ? Kernel<4, 1, true, GroupedArgs>() : Kernel<4, 1, false, GroupedArgs>();
}

template <typename Args>
const void* KernelOf(DeviceContext& ctx, const LinearPlan& plan, const Args& args) {
  const void* kernel = KernelOf(args);
  prefill::AllowLaunch(ctx, kernel, plan, prefill::StageBytes(args.streams, false));
  return kernel;
}

}  // namespace

int64_t MaxPrefillClusters(DeviceContext& ctx, const LinearPlan& plan, const PrefillArgs& args) {
  return prefill::MaxClusters(KernelOf(ctx, plan, args), plan);
}

void LaunchPrefillWgmma(DeviceContext& ctx, const LinearPlan& plan, const PrefillArgs& args) {
  prefill::Launch(ctx, KernelOf(ctx, plan, args), plan, args, args.schedule.clusters);
}

void LaunchGroupedWgmma(DeviceContext& ctx, const LinearPlan& plan, const GroupedArgs& args) {
  const void* kernel = KernelOf(ctx, plan, args);
  GroupedArgs copy = args;
  GroupedSchedule& schedule = copy.schedule;
  const int pieces = schedule.most_tiles * schedule.supers;
  schedule.clusters = std::min(static_cast<int>(prefill::MaxClusters(kernel, plan)), pieces);
  schedule.max_steps = (pieces + schedule.clusters - 1) / schedule.clusters;
  prefill::Launch(ctx, kernel, plan, copy, schedule.clusters);
}

}  // namespace stoch::cuda
