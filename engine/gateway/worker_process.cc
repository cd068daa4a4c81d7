// SPDX-License-Identifier: Apache-2.0
#include "engine/gateway/worker_process.h"

#include <fcntl.h>
#include <google/protobuf/util/delimited_message_util.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {  // glibc 2.36 forgets to say so
#include <sys/pidfd.h>
}

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "engine/ipc/convert.h"
#include "kernels/base/error.h"

extern char** environ;

namespace stoch::serve {
namespace {

constexpr int kSocket = 3;  // of the child
constexpr int kPage = 4;
constexpr int kMostLooks = 20;

[[noreturn]] void Throw(const char* call, int error) {
  throw DeviceError(std::string("cannot start a worker: ") + call + ": " + std::strerror(error));
}

// A descriptor and its end.
struct Descriptor {
  int fd = -1;
  Descriptor(int descriptor, const char* call) : fd(descriptor) {
    if (fd < 0) Throw(call, errno);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  int Release() { return std::exchange(fd, -1); }
};

// The same open file out of the way of the child's numbers.
int Above(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, kPage + 1); }

}  // namespace

WorkerProcess::WorkerProcess(boost::asio::io_context& io, const std::vector<std::string>& command, Events events,
                             Kind kind)
    : io_(io),
      events_(std::move(events)),
      rendezvous_(kind == Kind::kLaunched ? std::make_unique<ipc::Rendezvous>(io) : nullptr),
      page_(rendezvous_ == nullptr ? ipc::CrashPage() : ipc::CrashPage(rendezvous_->TakePage())),
      is_launched_(kind == Kind::kLaunched),
      pidfd_(io) {
  if (is_launched_) {
    Spawn(command, -1);
    Watch();
    rendezvous_->Accept([this](int socket_fd, pid_t peer) {
      worker_ = peer;
      rendezvous_.reset();
      Talk(socket_fd);
    });
    return;
  }
  std::array<int, 2> ends = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) Throw("socketpair", errno);
  Descriptor ours(ends[0], "socketpair");
  const Descriptor theirs(ends[1], "socketpair");
  Spawn(command, theirs.fd);
  Watch();
  Talk(ours.Release());
}

// Hears of its end.
void WorkerProcess::Watch() {
  const int pidfd = pidfd_open(pid_, 0);
  if (pidfd < 0) {
    const int error = errno;
    kill(pid_, SIGKILL);  // not reaped yet, so it is still that process
    waitpid(pid_, nullptr, 0);
    Throw("pidfd_open", error);
  }
  pidfd_.assign(pidfd);
  pidfd_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [this, here = here_](const boost::system::error_code& error) {
                      if (*here && !error) OnDeath();
                    });
}

void WorkerProcess::Talk(int socket_fd) {
  channel_ = std::make_shared<ipc::Channel>(io_, io_, socket_fd);
  channel_->Start(
      [this, here = here_](google::protobuf::io::ZeroCopyInputStream* stream) {
        ipc::FromWorker message;
        if (!*here || !google::protobuf::util::ParseDelimitedFromZeroCopyStream(&message, stream, nullptr)) {
          return false;
        }
        try {
          ipc::Check(message);
        } catch (const InvalidInput&) {
          return false;
        }
        events_.on_message(message);
        return true;
      },
      [this, here = here_] {
        if (!*here) return;
        heard_all_ = true;
        Kill();  // one that nobody hears is of no use
        EndIfAllIsHeard();
      });
}

namespace {

// This process's environment, with another folder for temporary files where one is given.
std::vector<std::string> EnvironmentWith(const std::optional<ipc::PrivateFolder>& temporary) {
  constexpr std::string_view kName = "TMPDIR=";
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!temporary || !std::string_view(*entry).starts_with(kName)) environment.emplace_back(*entry);
  }
  if (temporary) environment.push_back(std::string(kName) + temporary->path());
  return environment;
}

// srun has other machines make the folder that it names, where nobody would remove it.
bool KeepsFilesHere(const std::string& launcher) { return std::filesystem::path(launcher).filename() != "srun"; }

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

void WorkerProcess::Spawn(std::vector<std::string> words, int socket_fd) {
  if (is_launched_ && KeepsFilesHere(words.front())) temporary_.emplace();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  std::vector<std::unique_ptr<Descriptor>> handed;
  if (is_launched_) {
    words.insert(words.end(), {"--gateway", rendezvous_->folder()});
    // Launchers read it, and hand it on.
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  } else {
    words.insert(words.end(), {"--socket-fd", std::to_string(kSocket), "--page-fd", std::to_string(kPage)});
    handed.push_back(std::make_unique<Descriptor>(Above(socket_fd), "fcntl"));
    handed.push_back(std::make_unique<Descriptor>(Above(page_.fd()), "fcntl"));
    posix_spawn_file_actions_adddup2(&actions, handed[0]->fd, kSocket);
    posix_spawn_file_actions_adddup2(&actions, handed[1]->fd, kPage);
    posix_spawn_file_actions_addclosefrom_np(&actions, kPage + 1);
  }
  std::vector<std::string> environment = EnvironmentWith(temporary_);
  const std::vector<char*> argv = Pointers(words), variables = Pointers(environment);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Ctrl-C is for the gateway, which drains.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const int error = posix_spawnp(&pid_, argv.front(), &actions, &attributes, argv.data(), variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) Throw(("posix_spawn " + words.front()).c_str(), error);
}

WorkerProcess::~WorkerProcess() {
  *here_ = false;
  rendezvous_.reset();
  if (channel_ != nullptr) channel_->Close();
  if (!how_.empty()) return;
  Kill();
  const auto wait = [this](int flags) {
    siginfo_t info{};
    waitid(P_PIDFD, static_cast<id_t>(pidfd_.native_handle()), &info, WEXITED | flags);
    return info.si_pid != 0;
  };
  if (is_launched_) {
    const auto deadline = std::chrono::steady_clock::now() + kGrace;
    while (std::chrono::steady_clock::now() < deadline) {
      if (wait(WNOHANG)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    Signal(SIGKILL);
  }
  wait(0);
}

void WorkerProcess::Signal(int number) {
  if (how_.empty()) pidfd_send_signal(pidfd_.native_handle(), number, nullptr, 0);
}

namespace {

bool IsProcessStopped(pid_t pid) {
  // "PID (NAME) STATE ..."; a name may hold anything.
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::ostringstream read;
  read << file.rdbuf();  // one that is gone by now is an error of the file, and throws in an iterator
  const std::string text = read.str();
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos) return false;
  const char state = text[name_end + 2];
  return state == 'T' || state == 't';
}

}  // namespace

void WorkerProcess::Kill() {
  if (!is_launched_ || IsProcessStopped(pid_)) return Signal(SIGKILL);  // one that is stopped hears no request
  const auto now = std::chrono::steady_clock::now();
  if (asked_to_end_) {  // once: a second request has mpirun leave its processes
    if (now - *asked_to_end_ >= kGrace) Signal(SIGKILL);
    return;
  }
  asked_to_end_ = now;
  Signal(SIGTERM);
}

bool WorkerProcess::IsStopped() const { return IsProcessStopped(pid_) || (worker_ != 0 && IsProcessStopped(worker_)); }

bool WorkerProcess::IsLauncherStopped() const { return is_launched_ && IsProcessStopped(pid_); }

void WorkerProcess::Look() {
  if (asked_to_end_) Kill();
  if (how_.empty()) return OnDeath();
  if (!heard_all_ && ++looks_ < kMostLooks) return;
  heard_all_ = true;
  EndIfAllIsHeard();
}

void WorkerProcess::OnDeath() {
  if (!how_.empty()) return;
  siginfo_t info{};
  waitid(P_PIDFD, static_cast<id_t>(pidfd_.native_handle()), &info, WEXITED | WNOHANG);
  if (info.si_pid == 0) return;  // it lives
  how_ = (info.si_code == CLD_EXITED ? "exit code " : "signal ") + std::to_string(info.si_status);
  if (channel_ == nullptr) heard_all_ = true;  // nobody has come, and nobody will
  rendezvous_.reset();
  events_.on_death();
  EndIfAllIsHeard();
}

void WorkerProcess::EndIfAllIsHeard() {
  if (how_.empty() || !heard_all_ || ended_) return;
  events_.on_end(how_);  // again, if it finds no memory
  ended_ = true;
}

}  // namespace stoch::serve
