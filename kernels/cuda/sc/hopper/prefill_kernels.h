// SPDX-License-Identifier: Apache-2.0
// Arguments of the prefill kernels: tasks, streams and the split of the work over clusters.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/cuda/sc/format/task.h"
#include "kernels/cuda/sc/hopper/prefill_schedule.h"
#include "kernels/cuda/sc/tensor_core/streams.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {

struct PrefillArgs {
  ScKernelTask tasks[kMaxScTasks];
  int task_count = 0;
  ScStreams streams;
  PrefillSchedule schedule;
  float gain = 0;
  // Ranks of the weights' levels where they are not DirectRanks: ScTables::ranks [masks][levels].
  const uint16_t* ranks = nullptr;
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;  // a constant that the compiler does not know to be one: see MultiplyAdd
  // Set by LaunchPrefillWgmma. Every warpgroup starts a chunk a stage after the one before it, so that their epilogues
  // (the chunk's scales) fall apart in time and the tensor cores never idle for all three.
  bool stagger = false;
  float* partial =
      nullptr;  // [rest][kPrefillCluster][accumulators][consumers]: y of cut tiles, in the order threads hold it
  int* flags = nullptr;  // [rest][kPrefillFlags]: pieces done, by warp
};

// Adds a task whose super tiles follow `supers` others; returns how many there are with its own.
// Requires: fewer than kMaxScTasks tasks.
template <typename Args>
int AddTask(const ScLinearTask& task, int supers, Args* args) {
  STOCH_CHECK(args->task_count < kMaxScTasks);
  args->tasks[args->task_count++] = MakeKernelTask(task, supers);
  return supers + static_cast<int>((task.weight.rows + kSuperRows - 1) / kSuperRows);
}

// wgmma b1 (sm_90a). Requires streams.tile_tokens = kPrefillTokens and every cluster of the schedule resident.
void LaunchPrefillWgmma(DeviceContext& ctx, const LinearPlan& plan, const PrefillArgs& args);
int64_t MaxPrefillClusters(DeviceContext& ctx, const LinearPlan& plan, const PrefillArgs& args);

}  // namespace stoch::cuda
