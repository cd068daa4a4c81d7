// SPDX-License-Identifier: Apache-2.0
#include "engine/worker/worker.h"

#include <google/protobuf/util/delimited_message_util.h>
#include <malloc.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/ipc/channel.h"
#include "engine/ipc/convert.h"
#include "engine/ipc/crash_page.h"
#include "engine/worker/fatal_signals.h"
#include "engine/worker/local_model.h"
#include "engine/worker/marking_backend.h"
#include "engine/worker/scheduler.h"
#include "kernels/base/error.h"
#include "kernels/wrappers/blocking_backend.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kBeat{50};
constexpr std::chrono::milliseconds kLook{5};
constexpr std::chrono::seconds kMemoryLook{1};
constexpr std::chrono::milliseconds kFarewell{1000};
constexpr int64_t kEveryJob = int64_t{1} << 40;  // the gateway bounds the queue

void GiveHeapBack() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

struct Worker::State {
  explicit State(int socket_fd, int page_fd)
      : page(page_fd < 0 ? std::make_unique<ipc::CrashPage>() : std::make_unique<ipc::CrashPage>(page_fd)),
        channel(std::make_shared<ipc::Channel>(inbox, io, socket_fd)),
        look(io) {}

  void Beat(const std::stop_token& stop);
  void LookAtDevice();
  void NoteRunning();
  void KeepRunning(const std::exception_ptr& failure);
  bool OnMessage(google::protobuf::io::ZeroCopyInputStream* stream);
  void Start(const ipc::Start& start);
  void Submit(const ipc::Start& start);
  void Compile(const ipc::Start& start);
  void OnUpdate(uint64_t job, const JobUpdate& update);
  void Forget(uint64_t job);
  void OnPasses(std::span<const uint64_t> ids);
  void Listen(std::chrono::milliseconds longest);
  bool LookAtMemory(Engine& engine, ipc::FromWorker* message);
  void SendTurn();

  asio::io_context inbox;  // run by the engine's thread between passes: no other thread has to wake it
  asio::executor_work_guard<asio::io_context::executor_type> inbox_work{inbox.get_executor()};
  asio::io_context io;
  const std::unique_ptr<ipc::CrashPage> page;
  const std::shared_ptr<ipc::Channel> channel;
  asio::steady_timer look;
  std::atomic<bool> gone = false;  // the gateway
  std::atomic<bool> failed = false;
  std::thread thread;

  std::mutex mutex;  // of what follows
  Scheduler* scheduler = nullptr;
  std::map<uint64_t, uint64_t> job_of;                // by the scheduler's id
  std::unordered_map<uint64_t, uint64_t> running_as;  // the other way
  std::unordered_set<uint64_t> blocking;              // jobs whose passes go on operator by operator

  std::shared_ptr<const Backend> watched;  // whose device it is that runs

  std::shared_ptr<BlockingBackend> backend;  // null where every call is done when it returns

  // The engine's thread only.
  ipc::FromWorker turn;  // what it has for the gateway
  std::chrono::steady_clock::time_point memory_looked;
  int64_t preemptions = 0;                 // that the gateway knows of
  double rank_waited_seconds = 0;          // likewise
  std::function<double()> rank_waits;      // Model::rank_waited_seconds
  std::unordered_set<uint64_t> compiling;  // jobs that wait for their grammar
  GuideMaker make_guide;                   // of the engine; empty: it has none
  bool has_run = false;                    // since the heap was given back

  asio::thread_pool compiler{1};  // uses the inbox
  std::jthread heart;             // last: it uses the page
};

// What the device runs, for when it hangs or fails.
void Worker::State::NoteRunning() {
  std::shared_ptr<const Backend> of;
  {
    const std::lock_guard lock(mutex);
    of = watched;
  }
  const std::optional<OpSite> site = of == nullptr ? std::nullopt : of->RunningSite();
  if (site) page->MarkRunning(site->layer, site->op);
}

// For good: what a device ran when it failed, and nothing where it was not the device.
void Worker::State::KeepRunning(const std::exception_ptr& failure) {
  NoteRunning();
  {
    const std::lock_guard lock(mutex);
    watched = nullptr;
  }
  try {
    std::rethrow_exception(failure);
  } catch (const DeviceError&) {
  } catch (...) {
    page->MarkRunning(-1, "");
  }
}

// On a thread that does nothing else and takes no lock of others: it shows that the process runs while it loads, while
// other threads wait for devices and for each other, and while nothing is to be done.
void Worker::State::Beat(const std::stop_token& stop) {
  std::mutex own;
  std::unique_lock lock(own);
  std::condition_variable_any never;
  while (!stop.stop_requested()) {
    page->Beat();
    never.wait_for(lock, stop, kBeat, [] { return false; });
  }
}

void Worker::State::LookAtDevice() {
  NoteRunning();
  look.expires_after(kBeat);
  look.async_wait([this](const boost::system::error_code& error) {
    if (!error) LookAtDevice();
  });
}

bool Worker::State::OnMessage(google::protobuf::io::ZeroCopyInputStream* stream) {
  ipc::ToWorker message;
  if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&message, stream, nullptr)) return false;
  for (const ipc::Start& start : message.start()) Start(start);
  const std::lock_guard lock(mutex);
  for (const uint64_t job : message.cancel()) {
    compiling.erase(job);
    const auto found = running_as.find(job);
    if (scheduler == nullptr || found == running_as.end()) continue;
    scheduler->Cancel(found->second);
    Forget(job);
  }
  return true;
}

void Worker::State::Start(const ipc::Start& start) {
  if (start.grammar_kind() == 0 || !make_guide) return Submit(start);
  // Passes go on meanwhile.
  compiling.insert(start.job());
  asio::post(compiler, [this, start] {
    Compile(start);
    asio::post(inbox, [this, start] {
      if (compiling.erase(start.job()) > 0) Submit(start);
    });
  });
}

// Once it is compiled, the engine finds it so. Whatever is wrong with it, the job hears of when it begins.
void Worker::State::Compile(const ipc::Start& start) {
  try {
    (void)make_guide(ipc::FromMessage(start).grammar, {});
  } catch (const std::exception&) {
    return;
  }
}

void Worker::State::Submit(const ipc::Start& start) {
  Job job;
  job.request = [request = ipc::FromMessage(start)] { return request; };
  job.on_update = [this, id = start.job()](const JobUpdate& update) { OnUpdate(id, update); };
  job.client = start.client();
  job.alone = start.alone();
  const std::lock_guard lock(mutex);
  if (scheduler == nullptr) return;
  std::vector<Job> jobs;
  jobs.push_back(std::move(job));
  const JobRunner::Submission submission = scheduler->Submit(std::move(jobs));
  if (submission.refusal != Refusal::kNone) return;  // the engine failed: the gateway is about to hear of it
  if (start.blocking()) blocking.insert(start.job());
  job_of[submission.first] = start.job();
  running_as[start.job()] = submission.first;
}

void Worker::State::OnUpdate(uint64_t job, const JobUpdate& update) {
  const std::lock_guard lock(mutex);
  // What a failed engine tells its jobs is not their end: the gateway has another one go on.
  if (scheduler == nullptr) return;
  if (update.error_status != 0 && scheduler->health() == JobRunner::Health::kFailed) return;
  *turn.add_updates() = ipc::ToMessage(job, update);
  if (!update.ids.empty()) blocking.erase(job);
  if (update.last()) Forget(job);
}

void Worker::State::Forget(uint64_t job) {
  blocking.erase(job);
  const auto found = running_as.find(job);
  if (found == running_as.end()) return;
  job_of.erase(found->second);
  running_as.erase(found);
}

void Worker::State::OnPasses(std::span<const uint64_t> ids) {
  std::vector<uint64_t> jobs;
  bool blocks = false;
  {
    const std::lock_guard lock(mutex);
    for (const uint64_t id : ids) {
      const auto found = job_of.find(id);
      if (found == job_of.end()) continue;
      jobs.push_back(found->second);
      blocks = blocks || blocking.contains(found->second);
    }
  }
  has_run = true;
  if (backend != nullptr) backend->set_blocks(blocks);
  page->SetExact(blocks || backend == nullptr);
  page->SetJobs(jobs);
}

void Worker::State::Listen(std::chrono::milliseconds longest) {
  // What a burst of requests took of the heap goes back where a whole wait brought nothing: without this the process keeps
  // the most that it ever held, in pieces.
  const bool was_idle = longest.count() > 0 && inbox.run_one_for(longest) == 0;
  if (was_idle && std::exchange(has_run, false)) GiveHeapBack();
  inbox.poll();
}

// Now and then: it may cost a call of the driver. Where the engine's calls are made. Returns whether it has looked.
bool Worker::State::LookAtMemory(Engine& engine, ipc::FromWorker* message) {
  const auto now = std::chrono::steady_clock::now();
  if (now - memory_looked < kMemoryLook) return false;
  memory_looked = now;
  int64_t all = 0, used = 0;
  for (const Device& device : engine.backend().devices()) {
    const DeviceInfo info = engine.backend().info(device);
    all += info.total_bytes;
    used += info.total_bytes - info.free_bytes;
  }
  message->set_device_bytes(all);
  message->set_device_used_bytes(used);
  return true;
}

void Worker::State::SendTurn() {
  const std::lock_guard lock(mutex);
  if (scheduler == nullptr) return;
  const JobRunner::Load load = scheduler->load();
  turn.set_running(load.running);
  turn.set_waiting(load.waiting);
  turn.set_kv_usage(load.kv_usage);
  const int64_t so_far = scheduler->faults().preemptions;
  turn.set_preemptions(so_far - std::exchange(preemptions, so_far));
  if (rank_waits) {
    const double waited = rank_waits();
    turn.set_rank_waited_seconds(waited - std::exchange(rank_waited_seconds, waited));
  }
  channel->Send(turn);
  turn.Clear();
}

Worker::Worker(int socket_fd, int page_fd) : state_(std::make_unique<State>(socket_fd, page_fd)) {
  State& state = *state_;
  RecordFatalSignals(state.page.get());
  state.heart = std::jthread([&state](const std::stop_token& stop) { state.Beat(stop); });
  state.channel->Start([&state](auto* stream) { return state.OnMessage(stream); }, [&state] { state.gone = true; });
  state.LookAtDevice();
  state.thread = std::thread([&state] { state.io.run(); });
}

Worker::~Worker() {
  RecordFatalSignals(nullptr);
  state_->io.stop();
  state_->thread.join();
  state_->compiler.join();
}

std::shared_ptr<Backend> Worker::Marked(std::shared_ptr<Backend> backend, bool issues_ahead) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->watched = backend;
  }
  if (issues_ahead) backend = state_->backend = std::make_shared<BlockingBackend>(std::move(backend), false);
  return std::make_shared<MarkingBackend>(
      std::move(backend), [page = state_->page.get()](const OpSite& site) { page->Mark(site.layer, site.op); });
}

void Worker::MarkRank(const std::string& where) { state_->page->Mark(-1, where); }

void Worker::Serve(Engine& engine, const RunnerOptions& options, const Model& model) {
  State& state = *state_;
  RunnerOptions all = options;
  all.max_queue = kEveryJob;
  SchedulerHooks hooks;
  hooks.on_passes = [&state](std::span<const uint64_t> ids) { state.OnPasses(ids); };
  hooks.after_turn = [&state, &engine, &model] {
    if (model.check) model.check();
    state.SendTurn();  // tokens first
    if (state.LookAtMemory(engine, &state.turn)) state.SendTurn();
  };
  hooks.wait = [&state](std::chrono::milliseconds longest) { state.Listen(longest); };
  hooks.wake = [&state] { asio::post(state.inbox, [] {}); };
  ipc::FromWorker hello;
  state.LookAtMemory(engine, &hello);  // before it is the scheduler's
  state.make_guide = engine.options().make_guide;
  state.rank_waits = model.rank_waited_seconds;
  Scheduler scheduler(engine, all, std::move(hooks));
  {
    const std::lock_guard lock(state.mutex);
    state.scheduler = &scheduler;
  }
  *hello.mutable_hello() = ipc::ToMessage(Describe(engine));
  hello.mutable_hello()->set_max_sequences(engine.options().max_sequences);
  hello.mutable_hello()->set_repeatable(engine.options().precision != Precision::kFp16);
  ipc::SetParts(model.parts, hello.mutable_hello());
  hello.mutable_hello()->mutable_hop_seconds()->Assign(model.hop_seconds.begin(), model.hop_seconds.end());
  state.channel->Send(hello);
  while (!state.gone && scheduler.failure() == nullptr) std::this_thread::sleep_for(kLook);
  {
    const std::lock_guard lock(state.mutex);
    state.scheduler = nullptr;
  }
  if (const std::exception_ptr failure = scheduler.failure()) {
    state.KeepRunning(failure);
    std::rethrow_exception(failure);
  }
}

void Worker::Fail(const std::string& message, int exit_code, bool lost_rank) {
  State& state = *state_;
  if (state.failed.exchange(true)) return;
  ipc::FromWorker failure;
  failure.mutable_failure()->set_message(message);
  failure.mutable_failure()->set_exit_code(exit_code);
  failure.mutable_failure()->set_lost_rank(lost_rank);
  state.channel->Send(failure);
  const auto deadline = std::chrono::steady_clock::now() + kFarewell;
  while (!state.channel->sent() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kLook);
}

}  // namespace stoch::serve
