// SPDX-License-Identifier: Apache-2.0
// Arguments of the prefill kernel (prefill_wgmma.cuh): tasks, streams and the split of the work over clusters.
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
  ScKernelTask tasks[kMaxScTasks];  // [task_count] weights and outputs; first_block counts super tiles
  int task_count = 0;
  ScStreams streams;
  PrefillSchedule schedule;
  float gain = 0;
  const uint16_t* ranks = nullptr;  // [masks][levels] rank (ones of the stream) of each weight level; null: DirectRanks
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;  // ~0u as a value that the compiler does not know (MultiplyAdd of operand.cuh)
  // Set by the launch. True: each warpgroup starts a chunk one stage after the warpgroup before it, so that their
  // epilogues (scaling the chunk) do not coincide and the tensor cores do not idle.
  bool stagger = false;
  // [PrefillSchedule::rest()][kPrefillCluster][accumulators of a thread][consumer threads]: y of tiles that are cut
  // into pieces, handed from one piece to the next.
  float* partial = nullptr;
  int* flags = nullptr;  // [PrefillSchedule::rest()][kPrefillFlags] number of pieces done, by consumer warp
};

// Appends a task to args->tasks. `supers`: super tiles (kSuperRows weight rows) of the tasks before it. Returns the
// number of super tiles with those of the new task.
// Requires: fewer than kMaxScTasks tasks.
template <typename Args>
int AddTask(const ScLinearTask& task, int supers, Args* args) {
  STOCH_CHECK(args->task_count < kMaxScTasks);
  args->tasks[args->task_count++] = MakeKernelTask(task, supers);
  return supers + static_cast<int>((task.weight.rows + kSuperRows - 1) / kSuperRows);
}

// Launches the prefill kernel over the tokens of a call.
// Requires: args.streams.tile_tokens = kPrefillTokens; at most MaxPrefillClusters clusters in args.schedule, because
//           clusters wait for each other.
void LaunchPrefillWgmma(DeviceContext& ctx, const LinearPlan& plan, const PrefillArgs& args);
// The number of clusters of the kernel that the GPU runs at once.
int64_t MaxPrefillClusters(DeviceContext& ctx, const LinearPlan& plan, const PrefillArgs& args);

}  // namespace stoch::cuda
