// SPDX-License-Identifier: Apache-2.0
// One worker as a child of this process: spawned, talked to, watched, and reaped.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/ipc/channel.h"
#include "engine/ipc/crash_page.h"
#include "engine/ipc/messages.pb.h"

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

  // Runs `command` (program first) with " --socket-fd N --page-fd M" added; no other descriptor but the standard ones
  // reaches it. It dies with the thread that calls this.
  // Errors: DeviceError where the system refuses.
  WorkerProcess(boost::asio::io_context& io, const std::vector<std::string>& command, Events events);
  // Kills it where it is still there, and waits for its end. No event follows.
  ~WorkerProcess();

  pid_t pid() const { return pid_; }
  void Send(const ipc::ToWorker& message) { channel_->Send(message); }
  ipc::CrashReport Report() const { return page_.Read(); }
  void Kill();
  bool IsStopped() const;  // by SIGSTOP or a debugger
  // To be called now and then: has the events follow that were lost for want of memory.
  void Look();

 private:
  void Spawn(const std::vector<std::string>& command, int socket_fd);
  void OnDeath();
  void EndIfAllIsHeard();

  Events events_;
  ipc::CrashPage page_;
  std::shared_ptr<ipc::Channel> channel_;
  pid_t pid_ = 0;
  boost::asio::posix::stream_descriptor pidfd_;
  std::string how_;  // it died, "" while it lives
  bool heard_all_ = false;
  bool ended_ = false;
  int looks_ = 0;                                                    // since it died
  const std::shared_ptr<bool> here_ = std::make_shared<bool>(true);  // handlers outlive this
};

}  // namespace stoch::serve
