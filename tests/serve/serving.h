// SPDX-License-Identifier: Apache-2.0
// `stoch serve` as a child of a test. STOCH_BINARY and STOCH_SOURCE_DIR say where things are.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"

namespace stoch::test {

using Clock = std::chrono::steady_clock;

inline const std::string kDemo = std::string(STOCH_SOURCE_DIR) + "/demo";

// A server of the demo model. Killed where a test leaves it running.
class Serving {
 public:
  // unread: standard error is a pipe that nobody reads. files: descriptors it may have; 0 = as this process.
  // in_child: runs there before the program does.
  explicit Serving(const std::vector<std::string>& more = {}, const std::string& model = kDemo, bool unread = false,
                   rlim_t files = 0, const std::function<void()>& in_child = nullptr) {
    std::vector<std::string> words = {STOCH_BINARY, "serve", "--model", model, "--device", "cpu", "--threads", "1"};
    if (std::find(more.begin(), more.end(), "--port") == more.end()) words.insert(words.end(), {"--port", "0"});
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    WriteFile(folder_ / "out", "");
    WriteFile(folder_ / "err", "");
    if (unread && pipe(unread_.data()) != 0) throw std::runtime_error("pipe failed");
    child_ = fork();
    if (child_ < 0) throw std::runtime_error("fork failed");
    if (child_ == 0) {
      dup2(open((folder_ / "out").c_str(), O_WRONLY), STDOUT_FILENO);
      dup2(unread ? unread_[1] : open((folder_ / "err").c_str(), O_WRONLY), STDERR_FILENO);
      const rlimit limit = {files, files};
      if (files > 0) setrlimit(RLIMIT_NOFILE, &limit);
      if (in_child) in_child();
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Serving() {
    for (const int end : unread_) {
      if (end >= 0) close(end);
    }
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  // Waits until the log says `event`.
  bool Logs(const std::string& event) const {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (Log().find(" " + event + " ") == std::string::npos) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  std::string Log() const { return ReadFile(folder_ / "err"); }
  uint16_t port() const {
    const std::string out = ReadFile(folder_ / "out");
    return static_cast<uint16_t>(std::stoi(out.substr(out.rfind(':') + 1)));
  }
  pid_t pid() const { return child_; }
  void Signal(int number) const { kill(child_, number); }
  // The exit code, 128 + N where signal N ended it; nothing where it does not end in time.
  std::optional<int> Wait(std::chrono::milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    int status = 0;
    while (waitpid(child_, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    child_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  TempDir folder_;
  std::array<int, 2> unread_ = {-1, -1};
  pid_t child_ = 0;
};

}  // namespace stoch::test
