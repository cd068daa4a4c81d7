// SPDX-License-Identifier: Apache-2.0
// The stoch binary with standard descriptors as shells, service managers, Node and CI runners hand them over.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/tools/process.h"

namespace stoch::test {

// Standard input: kPipe has the input, at once, and then its end.
enum class End {
  kPipe,
  kClosed,
  kFull,         // /dev/full: no room for a byte; as input zeros without end
  kNonBlocking,  // a pipe of a page that is full at first, O_NONBLOCK at our end, whose other end is slow
  kGone,         // a pipe whose other end is closed
};
std::string EndName(End end);

struct Ends {
  End in = End::kPipe, out = End::kPipe, err = End::kPipe;
};

// One running process. Its arguments may name descriptor 3, a socket whose other end is closed, and 4, an empty file of
// `page_bytes` in memory: what workers get.
class Child {
 public:
  Child(const std::vector<std::string>& arguments, const Ends& ends, std::string input = "", size_t page_bytes = 0);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();  // kills it where it runs

  pid_t pid() const { return pid_; }
  // What came through a pipe so far; of a pipe that was full at first without what filled it.
  std::string Out() const { return TextOf(1); }
  std::string Err() const { return TextOf(2); }
  // Errors: std::runtime_error where it does not end in time.
  ProcessResult Wait(std::chrono::seconds limit = std::chrono::seconds(120));

 private:
  std::string TextOf(size_t fd) const;
  void Read(size_t index, int fd, bool slow);
  void Feed(int fd, bool slow);

  std::string input_;
  pid_t pid_ = -1;
  std::vector<std::thread> threads_;
  mutable std::mutex mutex_;
  std::array<std::string, 3> texts_;
  std::atomic<bool> ended_ = false;
};

}  // namespace stoch::test
