// SPDX-License-Identifier: Apache-2.0
// One worker as a child of this process: spawned, talked to, watched, and reaped.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/ipc/channel.h"
#include "engine/ipc/crash_page.h"
#include "engine/ipc/messages.pb.h"
#include "engine/ipc/rendezvous.h"

namespace stoch::serve {

// Threads: that of the io_context, which outlives this.
class WorkerProcess {
 public:
  struct Events {
    std::function<void(ipc::FromWorker& message)> on_message;
    // At once, when the process is gone; more that it said may be heard later.
    std::function<void()> on_death;
    // Once, after that, when all that it said has been heard. how: "exit code 3", "signal 9".
    std::function<void(const std::string& how)> on_end;
  };

  // How the process and the worker belong together.
  enum class Kind {
    kChild,     // it is the worker, and dies with the thread that starts it
    kLaunched,  // it starts the worker, among others, and ends when they have ended
  };

  // Runs `command` (program first, looked for in PATH) with " --socket-fd N --page-fd M" added; no other descriptor but the
  // standard ones reaches it. Of launchers, which hand none on: with " --gateway FOLDER" (engine/ipc/rendezvous.h).
  // Errors: DeviceError where the system refuses.
  WorkerProcess(boost::asio::io_context& io, const std::vector<std::string>& command, Events events,
                Kind kind = Kind::kChild);
  // Ends it where it is still there, and waits for its end. No event follows.
  ~WorkerProcess();

  pid_t pid() const { return pid_; }
  void Send(const ipc::ToWorker& message) {
    if (channel_ != nullptr) channel_->Send(message);
  }
  ipc::CrashReport Report() const { return page_.Read(); }
  // At once; a launcher is asked first and has kGrace, so that the processes of other machines have given their memory
  // back before there are new ones.
  void Kill();
  bool IsStopped() const;  // by SIGSTOP or a debugger
  bool IsLauncherStopped() const;
  // To be called now and then: has the events follow that were lost for want of memory.
  void Look();

 private:
  static constexpr std::chrono::seconds kGrace{5};

  void Spawn(std::vector<std::string> words, int socket_fd);
  void Watch();
  void Talk(int socket_fd);
  void Signal(int number);
  void OnDeath();
  void EndIfAllIsHeard();

  boost::asio::io_context& io_;
  Events events_;
  std::optional<ipc::PrivateFolder> temporary_;  // files of a launcher, of which it leaves some where it is killed
  std::unique_ptr<ipc::Rendezvous> rendezvous_;  // until a launched worker has come there
  ipc::CrashPage page_;
  std::shared_ptr<ipc::Channel> channel_;  // null until then
  std::optional<std::chrono::steady_clock::time_point> asked_to_end_;
  pid_t worker_ = 0;  // that came
  const bool is_launched_ = false;
  pid_t pid_ = 0;
  boost::asio::posix::stream_descriptor pidfd_;
  std::string how_;  // it died, "" while it lives
  bool heard_all_ = false;
  bool ended_ = false;
  int looks_ = 0;                                                    // since it died
  const std::shared_ptr<bool> here_ = std::make_shared<bool>(true);  // handlers outlive this
};

}  // namespace stoch::serve
