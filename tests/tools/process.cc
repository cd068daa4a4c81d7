// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

// In the child: descriptor `target` becomes the file.
void Redirect(const std::string& path, int flags, int target) {
  const int fd = open(path.c_str(), flags, 0600);
  if (fd < 0 || dup2(fd, target) < 0) _exit(126);
  close(fd);
}

}  // namespace

std::string StochBinary() { return STOCH_BINARY; }

ProcessResult RunStoch(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  const TempDir folder;
  const std::string in = folder / "in";
  const std::string err = folder / "err";
  const std::string out = options.output.empty() ? std::string(folder / "out") : options.output;
  WriteFile(in, options.input);
  if (options.output.empty()) WriteFile(out, "");
  std::vector<std::string> words = {StochBinary()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    Redirect(in, O_RDONLY, STDIN_FILENO);
    Redirect(out, O_WRONLY | O_CREAT, STDOUT_FILENO);
    Redirect(err, O_WRONLY | O_CREAT, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  bool interrupted = options.interrupt_after_out.empty();
  int status = 0;
  rusage usage = {};
  while (wait4(child, &status, WNOHANG, &usage) == 0) {
    if (!interrupted && ReadFile(out).find(options.interrupt_after_out) != std::string::npos) {
      kill(child, SIGINT);
      interrupted = true;
    }
    if (options.kill_when && options.kill_when()) kill(child, SIGKILL);
    if (std::chrono::steady_clock::now() > deadline) {
      kill(child, SIGKILL);
      wait4(child, &status, 0, &usage);
      throw std::runtime_error("stoch did not end: " + ReadFile(err));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ProcessResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (options.output.empty()) result.out = ReadFile(out);
  result.err = ReadFile(err);
  result.max_resident_kb = usage.ru_maxrss;
  return result;
}

}  // namespace stoch::test
