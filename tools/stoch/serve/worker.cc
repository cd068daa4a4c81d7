// SPDX-License-Identifier: Apache-2.0
// stoch worker: an engine at the other end of a socket, started by `stoch serve`.

#include "engine/worker/worker.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/common_options.h"
#include "app/draft.h"
#include "app/run_on_ranks.h"
#include "engine/grammar/grammar_compiler.h"
#include "engine/ipc/rendezvous.h"
#include "engine/ranks/job.h"
#include "kernels/base/error.h"
#include "models/decoder/rank_link.h"
#include "tools/stoch/commands.h"
#include "tools/stoch/serve/engine_options.h"
#include "tools/stoch/serve/log.h"
#include "tools/stoch/serve/served_files.h"

namespace stoch::cli {
namespace {

struct Options {
  ServedEngine engine;
  std::vector<std::string> gateway_files;
  int socket_fd = -1;
  int page_fd = -1;
  std::string gateway;  // instead of both
};

// Errors: as those of a command; the gateway has them too.
void Serve(const Options& options, serve::Worker& worker) {
  const FileRecord record;
  for (const std::string& file : options.gateway_files) (void)MappedFile(file);
  ModelFiles files = OpenModelFiles(options.engine.model.model);
  std::vector<FileStamp> weights = files.weights->files();
  ServedEngine engine_of = options.engine;
  engine_of.arithmetic.notices = false;  // the gateway speaks for all of them
  EngineOptions engine_options = EngineOptionsFrom(engine_of, files);
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer(options.engine.model, files);
  if (tokenizer != nullptr) {
    engine_options.make_guide = MakerOf(std::make_shared<GrammarCompiler>(*tokenizer, files.config.vocab_size));
  }
  const std::shared_ptr<DraftFiles> draft =
      OpenDraft(options.engine.speculation, files, engine_options, options.engine.arithmetic.sc);
  if (draft != nullptr) {
    const std::vector<FileStamp> more = draft->files.weights->files();
    weights.insert(weights.end(), more.begin(), more.end());
  }
  OutputOptions output;
  output.quiet = true;
  DeviceOptions devices = options.engine.device;
  devices.fit_kv = KvFitOf(options.engine);
  std::shared_ptr<Backend> backend = Open(devices);
  const bool issues_ahead = backend->devices().front().kind != DeviceKind::kCpu && !devices.launch_blocking;
  const std::unique_ptr<Engine> engine = OpenWithDraft(worker.Marked(std::move(backend), issues_ahead),
                                                       std::move(files), engine_options, devices, output, draft.get());
  const auto check = [&weights] {
    const std::string changed = ChangedFile(weights);
    if (!changed.empty()) throw DeviceError(changed + " was changed while it was served");
  };
  check();
  serve::Worker::Model model;
  model.parts = PartsOf(record.notes());
  model.parts["sc"] = engine->sc_description();
  model.parts["precision"] = PrecisionName(engine->options().precision);
  model.parts["split"] = devices.split;
  // Some weights are read where their file is mapped; GPUs have a copy.
  if (engine->backend().devices().front().kind == DeviceKind::kCpu) model.check = check;
  if (RankJob* job = options.engine.device.ranks.job; job != nullptr) {
    for (const RankReport& rank : job->reports()) model.hop_seconds.push_back(rank.hop_us / 1e6);
    model.rank_waited_seconds = [link = &job->link()] { return link->waited_seconds(); };
  }
  serve::RunnerOptions runner;
  runner.prefix_reuse = options.engine.prefix_reuse;
  try {
    worker.Serve(*engine, runner, model);
  } catch (const LostRank& error) {
    worker.Fail(error.what(), kDeviceFailure, true);
    throw;
  } catch (const std::exception& error) {
    worker.Fail(error.what(), kDeviceFailure);  // before the engine is taken apart, which takes long on some devices
    throw;
  }
}

// One that a launcher started, as rank 0: it hears of its gateway where both of them were told.
ipc::GatewayFds GatewayOf(const Options& options) {
  if (options.gateway.empty()) return {options.socket_fd, options.page_fd};
  try {
    return ipc::ConnectToGateway(options.gateway);
  } catch (const InvalidInput& error) {
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    throw InvalidInput(
        fmt::format("{}; rank 0 is on {}: name the gateway's machine first in --launch", error.what(), host.data()));
  }
}

// While it is there, a gateway hears of a job that is about to end because rank 0 does not come back from a call.
class TellsOfStuckRanks {
 public:
  TellsOfStuckRanks(RankJob* job, serve::Worker* worker) : job_(job) {
    if (job_ == nullptr) return;
    job_->OnStuck([worker](const std::string& why) { worker->Fail("rank 0: " + why, kDeviceFailure, true); });
  }
  ~TellsOfStuckRanks() {
    if (job_ != nullptr) job_->OnStuck(nullptr);
  }
  TellsOfStuckRanks(const TellsOfStuckRanks&) = delete;
  TellsOfStuckRanks& operator=(const TellsOfStuckRanks&) = delete;

 private:
  RankJob* job_;
};

ExitCode Run(const Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Asked to end are gateways: a worker ends with the last request of its own. Launchers ask all that they have started.
  if (options.gateway.empty()) {
    std::signal(SIGTERM, SIG_IGN);
    std::signal(SIGINT, SIG_IGN);
  }
  const ServeLog log(options.engine.quiet);
  const ipc::GatewayFds gateway = GatewayOf(options);
  serve::Worker worker(gateway.socket_fd, gateway.page_fd);
  RankJob* const job = options.engine.device.ranks.job;
  const TellsOfStuckRanks tells(job, &worker);
  if (job != nullptr) {
    job->link().OnHeartbeat([&worker](const std::string& where) { worker.MarkRank(where); });
  }
  ExitCode code = kDone;
  std::string why;
  try {
    Serve(options, worker);
  } catch (const InvalidInput& error) {
    code = kBadInput;
    why = error.what();
  } catch (const LostRank& error) {
    worker.Fail(error.what(), kDeviceFailure, true);
    throw;  // the other ranks are ended
  } catch (const DeviceError& error) {
    worker.Fail(error.what(), kDeviceFailure);
    if (options.engine.device.ranks.job != nullptr) throw;
    return kDeviceFailure;
  } catch (const std::exception& error) {
    code = kDeviceFailure;
    why = error.what();
  }
  if (code != kDone) worker.Fail(why, code);
  return code;
}

}  // namespace

CommandBody AddWorker(CLI::App& command) {
  command.description("Steps the engine for stoch serve, which starts it");
  command.group("");  // not for people
  auto options = std::make_shared<Options>();
  AddServedEngine(command, &options->engine);
  auto* socket_fd = command.add_option("--socket-fd", options->socket_fd, "To the gateway");
  command.add_option("--sharers", options->engine.sharers, "Workers on the same devices")->check(CLI::Range(1, 64));
  command.add_option("--gateway-file", options->gateway_files, "A file that the gateway read, for comparison")
      ->allow_extra_args(false);
  auto* page_fd = command.add_option("--page-fd", options->page_fd, "The crash page");
  auto* gateway = command.add_option("--gateway", options->gateway, "A folder with both, of a worker that is launched");
  gateway->excludes(socket_fd)->excludes(page_fd);
  socket_fd->needs(page_fd);
  AddRankOptions(command, &options->engine.device.ranks);
  return [options] {
    if (options->gateway.empty() && options->page_fd < 0) throw InvalidInput("stoch worker: is started by stoch serve");
    return RunOnRanks(&options->engine.device, options->engine.model.model, [options] { return Run(*options); });
  };
}

}  // namespace stoch::cli
