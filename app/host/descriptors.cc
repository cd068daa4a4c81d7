// SPDX-License-Identifier: Apache-2.0
#include "app/host/descriptors.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace stoch::cli {
namespace {

// Node and CI runners hand over pipes with O_NONBLOCK set. Clearing it is no way out: the flag belongs to everybody who
// shares the pipe. Where poll has nothing to say, the next read or write has.
bool WaitFor(int fd, short events) {
  pollfd wait{fd, events, 0};
  return poll(&wait, 1, -1) >= 0;
}

bool IsNoWait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

void HoldStandardDescriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // Opened for the other direction, so that use fails. open() takes the lowest free number, which is this one.
    const int flags = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (open("/dev/null", flags) < 0) (void)open("/", O_RDONLY | O_DIRECTORY);  // where there is no /dev
  }
}

ssize_t ReadSome(int fd, void* bytes, size_t size) {
  for (;;) {
    const ssize_t count = read(fd, bytes, size);
    if (count >= 0 || !IsNoWait(errno)) return count;
    if (!WaitFor(fd, POLLIN)) return -1;
  }
}

int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (IsNoWait(errno)) {
      WaitFor(fd, POLLOUT);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace stoch::cli
