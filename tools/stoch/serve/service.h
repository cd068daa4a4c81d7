// SPDX-License-Identifier: Apache-2.0
// What a service manager is told, and what it has kept for us. Wraps libsystemd; without it, or without a manager,
// nothing happens.
#pragma once

#include <chrono>

namespace stoch::cli {

class Service {
 public:
  // Errors: InvalidInput where the manager hands over more than one socket.
  Service();
  // The socket that the manager listens on for us, so that nobody is refused while we restart; -1: none.
  int listening_fd() const { return listening_fd_; }
  void Ready();
  void Stopping();
  // To be called now and then while the server is well: a manager with a watchdog restarts one that is silent.
  void Beat();

 private:
  int listening_fd_ = -1;
  std::chrono::steady_clock::duration interval_{};  // of beats; 0: nobody wants any
  std::chrono::steady_clock::time_point last_;
};

}  // namespace stoch::cli
