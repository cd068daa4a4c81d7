// SPDX-License-Identifier: Apache-2.0
#include "app/options/rank_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "app/options/rank_division.h"

namespace stoch::cli {

void AddRankOptions(CLI::App& command, RankOptions* options) {
  CLI::Option* ranks =
      command
          .add_option("--ranks", options->kind,
                      "mpi: divide the layers of the model over the processes that mpirun or srun started")
          ->check(CLI::IsMember({"mpi"}));
  AddRankDivision(command, options, ranks);
}

void AddRankDivision(CLI::App& command, RankOptions* options, CLI::Option* ranks) {
  const std::string with = "With " + ranks->get_name() + ": ";
  command
      .add_option("--rank-layers", options->layers,
                  with + "layers of each rank, 40,43,43; default: as many bytes on each as they go")
      ->needs(ranks);
  command
      .add_option("--rank-limit", options->limit_s,
                  with + "seconds without a sign of life after which a rank is lost; 0 = 10 on GPUs, 120 on CPUs")
      ->check(CLI::Range(0, 86400))
      ->needs(ranks);
}

std::chrono::seconds RankLimit(const RankOptions& options, std::span<const Device> devices) {
  if (options.limit_s > 0) return std::chrono::seconds(options.limit_s);
  constexpr int kGpuLimit = 10, kCpuLimit = 120;  // one operator of a large model
  const bool has_cpu = devices.empty() ||
                       std::any_of(devices.begin(), devices.end(), [](Device d) { return d.kind == DeviceKind::kCpu; });
  return std::chrono::seconds(has_cpu ? kCpuLimit : kGpuLimit);
}

int LaunchedProcesses() {
  // Open MPI; MPICH and PMI2; Slurm, whose variable batch scripts have too, so only within a step.
  const bool is_step = std::getenv("SLURM_STEP_ID") != nullptr;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", is_step ? "SLURM_STEP_NUM_TASKS" : ""}) {
    const char* value = *name == '\0' ? nullptr : std::getenv(name);
    if (value != nullptr && std::atoi(value) > 0) return std::atoi(value);
  }
  return 1;
}

}  // namespace stoch::cli
