// SPDX-License-Identifier: Apache-2.0
// Standard input, output and error as a process finds them: closed, full, non-blocking, or with nobody at the other end.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string_view>

namespace stoch::cli {

// First of all in main: gives a standard descriptor that is closed a place holder, so that no later open() gets its
// number and no result or message runs into another file. Reading and writing still fail as on a closed one (EBADF).
void HoldStandardDescriptors();

// One read, which waits for input on a non-blocking descriptor as on any other.
// Returns: the bytes read, 0 at the end; -1 with errno, which is EINTR after a signal.
ssize_t ReadSome(int fd, void* bytes, size_t size);

// Writes all of `text`, waiting for room on a non-blocking descriptor as on any other; a signal changes nothing.
// Returns: 0, or the errno of what kept it.
int WriteAll(int fd, std::string_view text);

}  // namespace stoch::cli
