// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/serve/service.h"

#ifdef STOCH_HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include <cstdint>

#include "kernels/base/error.h"

namespace stoch::cli {

#ifdef STOCH_HAVE_SYSTEMD

Service::Service() {
  constexpr int kUnset = 1;  // workers are none of the manager's business
  const int sockets = sd_listen_fds(kUnset);
  if (sockets > 1) throw InvalidInput("the service manager hands over several sockets; expected one at most");
  if (sockets == 1) listening_fd_ = SD_LISTEN_FDS_START;
  uint64_t microseconds = 0;
  // NOTIFY_SOCKET stays in the environment for Ready and Beat; the manager takes no word from workers.
  if (sd_watchdog_enabled(0, &microseconds) > 0) interval_ = std::chrono::microseconds(microseconds / 3);
}

void Service::Ready() { sd_notify(0, "READY=1"); }
void Service::Stopping() { sd_notify(0, "STOPPING=1"); }

void Service::Beat() {
  const auto now = std::chrono::steady_clock::now();
  if (interval_.count() == 0 || now - last_ < interval_) return;
  last_ = now;
  sd_notify(0, "WATCHDOG=1");
}

#else

Service::Service() = default;
void Service::Ready() {}
void Service::Stopping() {}
void Service::Beat() {}

#endif

}  // namespace stoch::cli
