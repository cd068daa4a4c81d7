// SPDX-License-Identifier: Apache-2.0
// Signals that end a worker, told to the crash page first: which one, and who sent it.
#pragma once

#include "engine/ipc/crash_page.h"

namespace stoch::serve {

// From now on SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT are written to the page before they do what they did
// otherwise. One page at a time; null: none, and the handlers as they were.
// Threads: any; the whole process is concerned.
void RecordFatalSignals(ipc::CrashPage* page);

}  // namespace stoch::serve
