// SPDX-License-Identifier: Apache-2.0
// Commands on the ranks of a job: rank 0 runs the command, the others follow.

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>
#include <utility>

#include "app/command.h"
#include "app/common_options.h"
#include "app/options/rank_options.h"
#include "app/version.h"
#include "engine/ranks/job.h"
#include "engine/ranks/mpi/mpi_link.h"
#include "kernels/base/error.h"
#include "models/decoder/memory_plan.h"

namespace stoch::cli {
namespace {

namespace fs = std::filesystem;

// Next to the program, or where it is installed.
std::vector<fs::path> ModuleFolders() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<fs::path> folders = {folder, folder.parent_path() / "lib/stoch"};
#if defined(__linux__) && defined(__x86_64__)
  folders.push_back(folder.parent_path() / "lib/x86_64-linux-gnu/stoch");
#elif defined(__linux__) && defined(__aarch64__)
  folders.push_back(folder.parent_path() / "lib/aarch64-linux-gnu/stoch");
#endif
  return folders;
}

std::chrono::seconds LimitOf(const DeviceOptions& devices) {
  if (devices.ranks.limit_s > 0) return std::chrono::seconds(devices.ranks.limit_s);
  constexpr int kGpuLimit = 10, kCpuLimit = 120;
  return std::chrono::seconds(devices.device.starts_with("cpu") || devices.device == "auto" ? kCpuLimit : kGpuLimit);
}

// Ends all ranks, this one included, whatever MPI does.
[[noreturn]] void EndAll(MpiLink& link) {
  spdlog::default_logger()->flush();
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    _exit(kDeviceFailure);
  }).detach();
  link.Abort(kDeviceFailure);
  _exit(kDeviceFailure);
}

void Follow(MpiLink& link, const DeviceOptions& devices, const std::string& model) {
  FollowerOptions options;
  options.model = model;
  options.build = Commit();
  options.open_backend = [&devices] { return stoch::cli::Open(devices); };
  options.place = [&devices](const ModelFiles& files, const Backend& backend, IndexRange local, int ranks,
                             EngineOptions* engine) {
    DeviceOptions own = devices;
    own.ranks.local = local;
    own.ranks.count = ranks;
    return PlaceOn(own, files, backend, engine);
  };
  FollowJob(link, options);
}

ExitCode Lead(MpiLink& link, DeviceOptions* devices, const std::function<ExitCode()>& body) {
  RankJob job(link, Commit());
  devices->ranks.job = &job;
  devices->ranks.count = link.count();
  try {
    const ExitCode code = body();
    job.End();
    devices->ranks.job = nullptr;
    return code;
  } catch (const LostRank&) {
    throw;
  } catch (...) {  // the others are as they were: they end in order
    job.End();
    throw;
  }
}

}  // namespace

ExitCode RunOnRanks(DeviceOptions* devices, const std::string& model, const std::function<ExitCode()>& body) {
  if (devices->ranks.kind.empty()) {
    if (const int processes = LaunchedProcesses(); processes > 1) {
      spdlog::warn("{} processes were started and each does all of the work: --ranks mpi divides one model over them",
                   processes);
    }
    return body();
  }
  if (LaunchedProcesses() == 1) throw InvalidInput("--ranks mpi: one rank: start it with mpirun or srun");
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the launcher's daemon is gone: so is the job
  const std::vector<fs::path> folders = ModuleFolders();
  MpiLink link(folders, LimitOf(*devices));
  if (link.count() == 1) throw InvalidInput("--ranks mpi: one rank: start it with mpirun or srun");
  const auto end_all = [&link](const std::exception& error) {
    spdlog::error("rank {} {}: {}", link.rank(), link.host(), OneLine(error.what()));
    EndAll(link);
  };
  if (link.rank() == 0) {
    try {
      return Lead(link, devices, body);
    } catch (const DeviceError& error) {
      end_all(error);
    }
  }
  // The other ranks wait for one that ends on its own: whatever ends it, ends all.
  try {
    Follow(link, *devices, model);
  } catch (const std::exception& error) {
    end_all(error);
  }
  return kDone;
}

std::unique_ptr<Engine> OpenOnRanks(std::shared_ptr<Backend> backend, ModelFiles files, EngineOptions options,
                                    const DeviceOptions& devices) {
  RankJob& job = *devices.ranks.job;
  job.Close();
  const int ranks = job.link().count();
  DeviceOptions own = devices;
  own.ranks.count = ranks;
  const int64_t num_layers = files.config.num_hidden_layers;
  const std::vector<int64_t> layers =
      !devices.ranks.layers.empty()
          ? ParseRankLayers("--rank-layers", devices.ranks.layers, ranks, num_layers)
          : DivideLayers(PlanMemory(files, options.precision, options.sc, ShapeOf(files.config, options), *backend),
                         ranks);
  own.ranks.local = LayersOfRank(layers, 0);
  options.placement = PlaceOn(own, files, *backend, &options);
  const std::string model = files.folder.empty() ? files.name : fs::absolute(files.folder).string();
  job.Open(model, files, options, layers);
  options.ranks = &job.link();
  std::unique_ptr<Engine> engine;
  try {
    engine = Engine::Open(std::move(backend), std::move(files), options);
  } catch (const LostRank&) {
    throw;
  } catch (...) {
    try {
      job.Await();
    } catch (const InvalidInput&) {  // the first error counts
    }
    job.Close();
    throw;
  }
  job.Await();
  return engine;
}

}  // namespace stoch::cli
