// SPDX-License-Identifier: Apache-2.0
#include "app/run_on_ranks.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "app/command.h"
#include "app/common_options.h"
#include "app/options/rank_options.h"
#include "app/report/ranks.h"
#include "app/version.h"
#include "engine/ranks/job.h"
#include "engine/ranks/mpi/mpi_link.h"
#include "engine/ranks/peers.h"
#include "engine/worker/marking_backend.h"
#include "kernels/base/error.h"
#include "models/decoder/memory_plan.h"
#include "models/decoder/rank_link.h"

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

// Ends this process where MPI does not return from a scope in time: it waits there for all ranks, however long, also where
// one of them was stopped or cannot be reached.
class EndsInTime {
 public:
  EndsInTime(std::chrono::seconds limit, const char* what)
      : thread_([limit, what](const std::stop_token& stop) {
          std::mutex mutex;
          std::condition_variable_any changed;
          std::unique_lock lock(mutex);
          changed.wait_for(lock, stop, limit, [] { return false; });
          if (stop.stop_requested()) return;
          spdlog::error("MPI does not {} within {} s: a rank has stopped, or cannot be reached", what, limit.count());
          spdlog::default_logger()->flush();
          _exit(kDeviceFailure);
        }) {}

 private:
  std::jthread thread_;
};

// Ends this process, whatever holds it up: MPI, or a log that nobody reads.
void EndSoon() {
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    _exit(kDeviceFailure);
  }).detach();
}

// Ends all ranks, this one included.
[[noreturn]] void EndAll(MpiLink& link) {
  EndSoon();
  spdlog::default_logger()->flush();
  link.Abort(kDeviceFailure);
  _exit(kDeviceFailure);
}

// Ends this process where a call of MPI does not come back (MpiLink::calls), or where a rank of this host has ended and the
// launcher does not end the others, once `tell` has heard of it.
class EndsWhereStuck {
 public:
  EndsWhereStuck(const MpiLink& link, const RankPeers& peers, std::function<void(const std::string& why)> tell)
      : thread_(
            [&link, &peers, tell = std::move(tell)](const std::stop_token& stop) { Watch(link, peers, tell, stop); }) {}

 private:
  static void Watch(const MpiLink& link, const RankPeers& peers, const std::function<void(const std::string&)>& tell,
                    const std::stop_token& stop) {
    constexpr std::chrono::milliseconds kLook(500);
    constexpr int kLooks = 10;  // and no time by the clock: this process may have been stopped too
    std::mutex mutex;
    std::condition_variable_any changed;
    std::unique_lock lock(mutex);
    uint64_t call = 0;
    std::optional<int> ended;
    for (int in_call = 0, after_end = 0; in_call < kLooks && after_end < kLooks;) {
      changed.wait_for(lock, stop, kLook, [] { return false; });
      if (stop.stop_requested()) return;
      const uint64_t now = link.calls();
      in_call = now % 2 == 1 && now == call ? in_call + 1 : 0;
      call = now;
      ended = peers.Ended();
      after_end = ended ? after_end + 1 : 0;
    }
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(kLook * kLooks).count();
    const std::string why =
        ended ? fmt::format("rank {} has ended, and the launcher does not end the others within {} s", *ended, waited)
              : fmt::format(
                    "MPI does not return from a call within {} s: a rank is lost, and the launcher does not end "
                    "the others",
                    waited);
    EndSoon();
    tell(why);
    spdlog::error("rank {} ({}): {}", link.rank(), link.host(), why);
    spdlog::default_logger()->flush();
    _exit(kDeviceFailure);
  }

  std::jthread thread_;
};

// How long an opening rank may not get on: reading one tensor takes longer than a pass.
std::chrono::seconds OpeningLimitOf(const DeviceOptions& devices) {
  constexpr int64_t kLeast = 10, kLimit = 120;
  const int64_t given = devices.ranks.limit_s;
  return std::chrono::seconds(given > 0 ? std::max(given, kLeast) : kLimit);
}

// How long a rank may say nothing whose own thread says once a second that it lives: rank 0, and others that open a model.
std::chrono::seconds IdleLimitOf(const DeviceOptions& devices) {
  constexpr int64_t kLeast = 5, kLimit = 120;
  const int64_t given = devices.ranks.limit_s;
  return std::chrono::seconds(given > 0 ? std::max(given, kLeast) : kLimit);
}

// How long MPI may take to begin, and ranks to meet: processes of a busy cluster do not start at once.
std::chrono::seconds BeginningLimitOf(const DeviceOptions& devices) {
  constexpr std::chrono::seconds kLeast(30);
  return std::max(OpeningLimitOf(devices), kLeast);
}

// MPI from its beginning to its end.
class MpiScope {
 public:
  explicit MpiScope(const DeviceOptions& devices) : limit_(OpeningLimitOf(devices)) {
    const std::vector<fs::path> folders = ModuleFolders();
    const EndsInTime begins(BeginningLimitOf(devices), "begin");
    link_ =
        std::make_unique<MpiLink>(folders, MpiLink::Limits{RankLimit(devices.ranks, {}), limit_, IdleLimitOf(devices)});
  }
  ~MpiScope() {
    const EndsInTime ends(limit_, "end");
    link_.reset();
  }
  MpiScope(const MpiScope&) = delete;
  MpiScope& operator=(const MpiScope&) = delete;
  MpiLink& link() { return *link_; }

 private:
  std::chrono::seconds limit_;
  std::unique_ptr<MpiLink> link_;
};

void Follow(MpiLink& link, const DeviceOptions& devices, const std::string& model) {
  FollowerOptions options;
  options.model = model;
  options.build = Commit();
  options.host = link.host();
  options.open_backend = [&]() -> std::shared_ptr<Backend> {
    std::shared_ptr<Backend> backend = stoch::cli::Open(devices);
    link.LimitRows(RankLimit(devices.ranks, backend->devices()));
    return std::make_shared<serve::MarkingBackend>(std::move(backend), [&link](const OpSite& site) {
      link.Heartbeat(fmt::format("rank {} {}: layer {} {}", link.rank(), link.host(), site.layer, site.op));
    });
  };
  options.describe = DescribeRank;
  options.place = [&devices](const ModelFiles& files, const Backend& backend, IndexRange local, int ranks,
                             EngineOptions* engine) {
    DeviceOptions own = devices;
    own.ranks.local = local;
    own.ranks.count = ranks;
    return PlaceOn(own, files, backend, engine);
  };
  FollowJob(link, options);
}

ExitCode Lead(RankJob& job, MpiLink& link, DeviceOptions* devices, const std::function<ExitCode()>& body) {
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

// The other ranks wait for one that ends on its own: whatever ends it, ends all. Rank 0 was told, and says it for all.
[[noreturn]] void EndFollower(MpiLink& link, const std::exception& error) {
  using Clock = std::chrono::steady_clock;
  const auto* lost = dynamic_cast<const LostRank*>(&error);
  const bool is_heard = lost == nullptr || lost->rank() != 0;  // by rank 0
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(is_heard ? 3 : 0);
  try {
    while (Clock::now() < deadline) {  // lets what was sent leave
      constexpr std::chrono::milliseconds kTurn(50);
      if (link.WaitFor(0, SIZE_MAX, kTurn)) std::this_thread::sleep_for(kTurn);
    }
  } catch (const LostRank&) {  // it is gone
  }
  spdlog::error("rank {} ({}): {}", link.rank(), link.host(), OneLine(error.what()));
  EndAll(link);
}

// Nothing watches the calls of MPI yet (EndsWhereStuck): a rank may be lost here, under a launcher that does not end the others.
std::unique_ptr<RankPeers> MeetPeers(MpiLink& link, std::chrono::seconds limit) {
  try {
    const EndsInTime begins(limit, "begin");
    return std::make_unique<RankPeers>(link, link.host());
  } catch (const std::exception& error) {
    spdlog::error("rank {} ({}): {}", link.rank(), link.host(), OneLine(error.what()));
    EndAll(link);
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
  MpiScope mpi(*devices);
  MpiLink& link = mpi.link();
  if (link.count() == 1) throw InvalidInput("--ranks mpi: one rank: start it with mpirun or srun");
  const std::unique_ptr<RankPeers> peers = MeetPeers(link, BeginningLimitOf(*devices));
  if (link.rank() > 0) {
    const EndsWhereStuck watched(link, *peers, [](const std::string&) {});
    try {
      Follow(link, *devices, model);
    } catch (const std::exception& error) {
      EndFollower(link, error);
    }
    return kDone;
  }
  RankJob job(link, Commit(), link.host());
  const EndsWhereStuck watched(link, *peers, [&job](const std::string& why) { job.TellStuck(why); });
  try {
    return Lead(job, link, devices, body);
  } catch (const LostRank& error) {
    spdlog::error("rank {}{}: {}", error.rank(), job.NameOfHost(error.rank()), OneLine(error.why()));
    EndAll(link);
  } catch (const DeviceError& error) {
    spdlog::error("rank 0 ({}): {}", link.host(), OneLine(error.what()));
    EndAll(link);
  }
}

namespace {

struct DividedModel {
  DeviceOptions own;  // of this rank
  std::vector<int64_t> layers;
  std::string name;  // for ranks that name none
};

// Sets the placement of this rank.
DividedModel Divide(const ModelFiles& files, const Backend& backend, const DeviceOptions& devices,
                    EngineOptions* options) {
  DividedModel model{devices, {}, {}};
  const int ranks = devices.ranks.job->link().count();
  model.own.ranks.count = ranks;
  const int64_t num_layers = files.config.num_hidden_layers;
  model.layers =
      !devices.ranks.layers.empty()
          ? ParseRankLayers("--rank-layers", devices.ranks.layers, ranks, num_layers)
          : DivideLayers(PlanMemory(files, options->precision, options->sc, ShapeOf(files.config, *options), backend),
                         ranks);
  model.own.ranks.local = LayersOfRank(model.layers, 0);
  options->placement = PlaceOn(model.own, files, backend, options);
  model.name = files.folder.empty() ? files.name : fs::absolute(files.folder).string();
  return model;
}

}  // namespace

std::unique_ptr<Engine> OpenOnRanks(std::shared_ptr<Backend> backend, ModelFiles files, EngineOptions options,
                                    const DeviceOptions& devices) {
  RankJob& job = *devices.ranks.job;
  job.Close();
  job.link().LimitRows(RankLimit(devices.ranks, backend->devices()));
  const DividedModel model = Divide(files, *backend, devices, &options);
  job.Open(model.name, files, options, model.layers);
  options.ranks = &job.link();
  const ProgressFn told = std::exchange(options.on_progress, nullptr);
  LoadProgress own;  // of this rank
  const auto tell = [&told, &own](const LoadedBytes& others) {
    if (told) told({own.done_bytes + others.done, own.total_bytes + others.total, own.tensor});
  };
  options.on_progress = [&job, &own, &tell](const LoadProgress& progress) {
    own = progress;
    tell(job.HearOthers());
  };
  std::unique_ptr<Engine> engine;
  try {
    engine = Engine::Open(std::move(backend), std::move(files), options);
    own.tensor = {};
    job.Await(tell);
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
  return engine;
}

std::vector<RankPlan> PlanRanks(const Backend& backend, const ModelFiles& files, EngineOptions options,
                                const DeviceOptions& devices) {
  RankJob& job = *devices.ranks.job;
  const DividedModel model = Divide(files, backend, devices, &options);
  const std::string own = DescribeRank(files, backend, FillDefaults(files.config, options));
  std::vector<RankPlan> plans;
  for (RankReport& report : job.Describe(model.name, files, options, model.layers, own)) {
    const IndexRange layers = LayersOfRank(model.layers, report.rank);
    plans.push_back({std::move(report), layers});
  }
  return plans;
}

}  // namespace stoch::cli
