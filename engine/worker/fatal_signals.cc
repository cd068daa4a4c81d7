// SPDX-License-Identifier: Apache-2.0
#include "engine/worker/fatal_signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace stoch::serve {
namespace {

constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

std::atomic<ipc::CrashPage*> page_of_process = nullptr;
std::array<struct sigaction, kSignals.size()> before{};

void Restore(int number) {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] == number) sigaction(number, &before[i], nullptr);
  }
}

extern "C" void OnFatalSignal(int number, siginfo_t* info, void*) {
  // Codes up to 0 are of signals that a process sent; abort() sends its own.
  const bool was_sent = info->si_code <= 0;
  const bool from_outside = was_sent && info->si_pid != getpid();
  // Of a process that this one's namespace does not show the number is 0.
  const int64_t sender = !from_outside ? 0 : info->si_pid == 0 ? -1 : info->si_pid;
  if (ipc::CrashPage* page = page_of_process.load()) page->MarkSignal(number, sender);
  Restore(number);
  // An instruction that faulted does so again when this returns; what was sent comes once.
  if (was_sent) raise(number);
}

}  // namespace

void RecordFatalSignals(ipc::CrashPage* page) {
  const bool was_on = page_of_process.exchange(page) != nullptr;
  if (was_on == (page != nullptr)) return;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_sigaction = OnFatalSignal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (page == nullptr) {
      sigaction(kSignals[i], &before[i], nullptr);
    } else {
      sigaction(kSignals[i], &action, &before[i]);
    }
  }
}

}  // namespace stoch::serve
