// SPDX-License-Identifier: Apache-2.0
// --ranks: the layers of one model over the processes that mpirun or srun started.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

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
  int64_t limit_s = 0;     // --rank-limit; 0: by the device
  RankJob* job = nullptr;  // no option: of rank 0, while the command runs
  // No options: how many ranks there are, and the layers of this one.
  int count = 1;
  IndexRange local = {};
};
void AddRankOptions(CLI::App& command, RankOptions* options);

// The number of processes that a launcher started this one with, as its environment says; 1 without one.
int LaunchedProcesses();

}  // namespace stoch::cli
