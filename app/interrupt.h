// SPDX-License-Identifier: Apache-2.0
// Ctrl-C: asked about between steps, so that a command can end with its summary.
#pragma once

#include <atomic>

namespace stoch::cli {

// Thrown by a command that was interrupted before its end.
struct Interrupted {};

// From now on the first SIGINT or SIGTERM sets the flag, and a second one of either kind ends the process at once: by the
// signal, or as process 1, which signals do not end, with exit code 128 + its number.
void WatchForInterrupt();
const std::atomic<bool>& InterruptFlag();
// Throws Interrupted if the flag is set, and what the host of this thread (host/host.h) throws.
void ThrowIfInterrupted();
// Takes a SIGINT as the end of one step only: clears the flag and watches again. After SIGTERM it stays set.
void ResumeAfterInterrupt();

}  // namespace stoch::cli
