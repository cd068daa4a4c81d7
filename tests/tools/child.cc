// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <stdexcept>

namespace stoch::test {
namespace {

using std::chrono::milliseconds;

constexpr size_t kPipeBytes = 4096;
constexpr milliseconds kSlowStart{1000};  // longer than the child takes to its first byte
constexpr char kFilling = '\x01';

struct Pipe {
  int read = -1, write = -1;
};

Pipe MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  return {fds[0], fds[1]};
}

void SetNonBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

// `ours` is kept by the test, `theirs` becomes the descriptor of the child; -1: none.
struct Wire {
  int ours = -1, theirs = -1;
};

Wire MakeWire(End end, bool is_input) {
  if (end == End::kClosed) return {};
  if (end == End::kFull) return {-1, open("/dev/full", O_RDWR | O_CLOEXEC)};
  const Pipe pipe = MakePipe();
  Wire wire = is_input ? Wire{pipe.write, pipe.read} : Wire{pipe.read, pipe.write};
  if (end == End::kGone) {
    close(wire.ours);
    wire.ours = -1;
  }
  if (end == End::kNonBlocking) {
    fcntl(pipe.write, F_SETPIPE_SZ, static_cast<int>(kPipeBytes));
    if (!is_input) {
      const std::string filling(kPipeBytes, kFilling);
      if (write(pipe.write, filling.data(), filling.size()) != static_cast<ssize_t>(filling.size())) {
        throw std::runtime_error("a pipe has no room");
      }
    }
    SetNonBlocking(wire.theirs);
  }
  return wire;
}

// Sockets, pages and pipes may have low numbers where the test itself has closed descriptors.
int MovedUp(int fd) {
  constexpr int kFirst = 50;
  if (fd < 0) return fd;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, kFirst);
  close(fd);
  return moved;
}

void Become(int fd, int target) {
  if (fd < 0) {
    close(target);
  } else if (dup2(fd, target) < 0) {
    _exit(126);
  }
}

}  // namespace

std::string EndName(End end) {
  switch (end) {
    case End::kPipe: return "pipe";
    case End::kClosed: return "closed";
    case End::kFull: return "full";
    case End::kNonBlocking: return "nonblocking";
    case End::kGone: return "gone";
  }
  return "";
}

Child::Child(const std::vector<std::string>& arguments, const Ends& ends, std::string input, size_t page_bytes)
    : input_(std::move(input)) {
  std::signal(SIGPIPE, SIG_IGN);  // a child may end before it has read everything
  const std::array<End, 3> all = {ends.in, ends.out, ends.err};
  std::array<Wire, 3> wires;
  for (size_t i = 0; i < 3; ++i) {
    wires[i] = MakeWire(all[i], i == 0);
    wires[i].theirs = MovedUp(wires[i].theirs);
    wires[i].ours = MovedUp(wires[i].ours);
  }
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) throw std::runtime_error("socketpair failed");
  close(sockets[1]);
  const int socket = MovedUp(sockets[0]);
  const int page = MovedUp(memfd_create("page", MFD_CLOEXEC));
  if (ftruncate(page, static_cast<off_t>(page_bytes)) != 0) throw std::runtime_error("ftruncate failed");
  std::vector<std::string> words = {StochBinary()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    Become(socket, 3);
    Become(page, 4);
    for (int fd = 0; fd < 3; ++fd) Become(wires[static_cast<size_t>(fd)].theirs, fd);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(socket);
  close(page);
  for (size_t i = 0; i < 3; ++i) {
    if (wires[i].theirs >= 0) close(wires[i].theirs);
    if (wires[i].ours < 0) continue;
    const bool slow = all[i] == End::kNonBlocking;
    const int fd = wires[i].ours;
    if (i == 0) {
      threads_.emplace_back([this, fd, slow] { Feed(fd, slow); });
    } else {
      threads_.emplace_back([this, i, fd, slow] { Read(i, fd, slow); });
    }
  }
}

Child::~Child() {
  if (!ended_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    ended_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

std::string Child::TextOf(size_t fd) const {
  const std::lock_guard lock(mutex_);
  std::string text = texts_[fd];
  text.erase(std::remove(text.begin(), text.end(), kFilling), text.end());
  return text;
}

// Until the end of the pipe, or, where a child of the child holds it, of the child.
void Child::Read(size_t index, int fd, bool slow) {
  constexpr size_t kBlock = 512;
  std::array<char, kBlock> block;
  if (slow) std::this_thread::sleep_for(kSlowStart);
  for (;;) {
    pollfd wait{fd, POLLIN, 0};
    if (poll(&wait, 1, 50) == 0) {
      if (ended_) break;
      continue;
    }
    const ssize_t count = read(fd, block.data(), block.size());
    if (count <= 0) break;
    {
      const std::lock_guard lock(mutex_);
      texts_[index].append(block.data(), static_cast<size_t>(count));
    }
    if (slow) std::this_thread::sleep_for(milliseconds(1));
  }
  close(fd);
}

// Slowly: a few bytes at a time, and nothing at first.
void Child::Feed(int fd, bool slow) {
  if (slow) std::this_thread::sleep_for(kSlowStart);
  const size_t piece = slow ? std::max<size_t>(1, input_.size() / 8) : std::max<size_t>(1, input_.size());
  for (size_t at = 0; at < input_.size() && !ended_;) {
    if (slow) std::this_thread::sleep_for(milliseconds(40));
    pollfd wait{fd, POLLOUT, 0};
    if (poll(&wait, 1, 50) == 0) continue;
    const size_t most = std::min({piece, input_.size() - at, kPipeBytes});
    const ssize_t count = write(fd, input_.data() + at, most);
    if (count < 0) break;  // nobody wants it
    at += static_cast<size_t>(count);
  }
  close(fd);
}

ProcessResult Child::Wait(std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("stoch did not end: " + Err());
    std::this_thread::sleep_for(milliseconds(2));
  }
  ended_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  ProcessResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = Out();
  result.err = Err();
  return result;
}

}  // namespace stoch::test
