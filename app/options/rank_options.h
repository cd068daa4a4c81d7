// SPDX-License-Identifier: Apache-2.0
// --ranks: the layers of one model over the processes that mpirun or srun started.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "models/decoder/shard.h"

namespace CLI {
class App;
}

namespace stoch {
class RankJob;
}

namespace stoch::cli {

struct RankOptions {
  std::string kind;        // --ranks: "" or mpi
  std::string layers;      // --rank-layers
  int64_t limit_s = 0;     // --rank-limit; 0: by the devices, RankLimit
  RankJob* job = nullptr;  // no option: of rank 0, while the command runs
  // No options: how many ranks there are, and the layers of this one.
  int count = 1;
  IndexRange local = {};
};
void AddRankOptions(CLI::App& command, RankOptions* options);

// How long a rank whose layers are on these devices may say nothing while others wait for its rows.
std::chrono::seconds RankLimit(const RankOptions& options, std::span<const Device> devices);

// The number of processes that a launcher started this one with, as its environment says; 1 without one.
int LaunchedProcesses();

}  // namespace stoch::cli
