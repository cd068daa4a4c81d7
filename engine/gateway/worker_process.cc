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
#include <cstring>
#include <fstream>
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

WorkerProcess::WorkerProcess(boost::asio::io_context& io, const std::vector<std::string>& command, Events events)
    : events_(std::move(events)), pidfd_(io) {
  std::array<int, 2> ends = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) Throw("socketpair", errno);
  Descriptor ours(ends[0], "socketpair");
  const Descriptor theirs(ends[1], "socketpair");
  Spawn(command, theirs.fd);
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
  channel_ = std::make_shared<ipc::Channel>(io, io, ours.Release());
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

void WorkerProcess::Spawn(const std::vector<std::string>& command, int socket_fd) {
  const Descriptor socket(Above(socket_fd), "fcntl");
  const Descriptor page(Above(page_.fd()), "fcntl");
  std::vector<std::string> words = command;
  for (const std::string& word :
       {std::string("--socket-fd"), std::to_string(kSocket), std::string("--page-fd"), std::to_string(kPage)}) {
    words.push_back(word);
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket.fd, kSocket);
  posix_spawn_file_actions_adddup2(&actions, page.fd, kPage);
  posix_spawn_file_actions_addclosefrom_np(&actions, kPage + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Ctrl-C is for the gateway, which drains.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const int error = posix_spawn(&pid_, argv.front(), &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) Throw("posix_spawn", error);
}

WorkerProcess::~WorkerProcess() {
  *here_ = false;
  channel_->Close();
  if (!how_.empty()) return;
  Kill();
  siginfo_t info{};
  waitid(P_PIDFD, static_cast<id_t>(pidfd_.native_handle()), &info, WEXITED);
}

void WorkerProcess::Kill() {
  if (how_.empty()) pidfd_send_signal(pidfd_.native_handle(), SIGKILL, nullptr, 0);
}

bool WorkerProcess::IsStopped() const {
  // "PID (NAME) STATE ..."; a name may hold anything.
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos) return false;
  const char state = text[name_end + 2];
  return state == 'T' || state == 't';
}

void WorkerProcess::Look() {
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
  events_.on_death();
  EndIfAllIsHeard();
}

void WorkerProcess::EndIfAllIsHeard() {
  if (how_.empty() || !heard_all_ || ended_) return;
  events_.on_end(how_);  // again, if it finds no memory
  ended_ = true;
}

}  // namespace stoch::serve
