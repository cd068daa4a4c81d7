// SPDX-License-Identifier: Apache-2.0
#include "app/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <csignal>

#include "app/host/host.h"

namespace stoch::cli {
namespace {

std::atomic<bool> interrupted{false};
std::atomic<bool> terminated{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

// By the signal itself, so that whoever waits for the process sees it. Process 1 of a container is deaf to signals that
// would end it.
[[noreturn]] void EndAtOnce(int signal_number) {
  constexpr int kBySignal = 128;
  std::signal(signal_number, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal_number);
  sigprocmask(SIG_UNBLOCK, &only, nullptr);
  raise(signal_number);
  _exit(kBySignal + signal_number);
}

extern "C" void OnSignal(int signal_number) {
  if (interrupted) EndAtOnce(signal_number);
  if (signal_number == SIGTERM) terminated = true;
  interrupted = true;
}

}  // namespace

void WatchForInterrupt() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = 0;  // no SA_RESTART: a blocked read must end
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A reader that went away shows as a write error (output.h).
  std::signal(SIGPIPE, SIG_IGN);
}

const std::atomic<bool>& InterruptFlag() { return interrupted; }

void ThrowIfInterrupted() {
  if (const Host* host = CurrentHost(); host != nullptr && host->check) host->check();
  if (interrupted) throw Interrupted{};
}

void ResumeAfterInterrupt() { interrupted = terminated.load(); }

}  // namespace stoch::cli
