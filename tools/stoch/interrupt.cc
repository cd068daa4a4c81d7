// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/interrupt.h"

#include <csignal>

#include "tools/stoch/host/host.h"

namespace stoch::cli {
namespace {

std::atomic<bool> interrupted{false};
std::atomic<bool> terminated{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

extern "C" void OnSignal(int signal_number) {
  if (signal_number == SIGTERM) terminated = true;
  interrupted = true;
}

}  // namespace

void WatchForInterrupt() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // and no SA_RESTART: a blocked read must end
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A reader that went away shows as a write error with its own message.
  std::signal(SIGPIPE, SIG_IGN);
}

const std::atomic<bool>& InterruptFlag() { return interrupted; }

void ThrowIfInterrupted() {
  if (const Host* host = CurrentHost(); host != nullptr && host->check) host->check();
  if (interrupted) throw Interrupted{};
}

void ResumeAfterInterrupt() {
  interrupted = terminated.load();
  WatchForInterrupt();
}

}  // namespace stoch::cli
