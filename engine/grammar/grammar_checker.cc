// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/grammar_checker.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <new>

#include "kernels/base/error.h"

namespace stoch {
namespace {

constexpr size_t kMostKnown = 1024;
constexpr size_t kMostReason = 4000;
constexpr const char* kJustNow = "just now";  // ends a reason that may not hold another time

// All of it, or false: the other end is gone.
bool ReadAll(int fd, void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = read(fd, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteAll(int fd, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<size_t>(put);
  }
  return true;
}

bool WriteText(int fd, const std::string& text) {
  const auto bytes = static_cast<uint32_t>(text.size());
  return WriteAll(fd, &bytes, sizeof(bytes)) && WriteAll(fd, text.data(), text.size());
}

bool ReadText(int fd, size_t most, std::string* text) {
  uint32_t bytes = 0;
  if (!ReadAll(fd, &bytes, sizeof(bytes)) || bytes > most) return false;
  text->resize(bytes);
  return ReadAll(fd, text->data(), bytes);
}

int64_t AddressSpaceBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

void Limit(int resource, int64_t bytes) {
  const rlimit limit = {static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
  setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

// Ends this process, and runs nothing of its parent's on the way: a child has copies of its buffers and objects.
[[noreturn]] void End() {
  for (;;) kill(getpid(), SIGKILL);
}

// What the process of one grammar says, in front of a reason. It says nothing where a limit or an error ended it.
enum class Said : char { kGood = 'g', kBad = 'b', kNoMemory = 'm' };

[[noreturn]] void CompileOne(GrammarCompiler& compiler, const GrammarSpec& grammar, int out,
                             const GrammarChecker::Limits& limits) {
  Limit(RLIMIT_AS, AddressSpaceBytes() + limits.memory_bytes);
  Limit(RLIMIT_STACK, limits.stack_bytes);
  Limit(RLIMIT_CORE, 0);
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(limits.processor).count();
  const itimerval timer = {{0, 0}, {us / 1'000'000, us % 1'000'000}};
  std::signal(SIGPROF, SIG_DFL);
  setitimer(ITIMER_PROF, &timer, nullptr);
  std::array<char, kMostReason + 1> words{static_cast<char>(Said::kGood)};
  size_t length = 0;
  try {
    compiler.Compile(grammar);
  } catch (const std::bad_alloc&) {
    words[0] = static_cast<char>(Said::kNoMemory);
  } catch (const std::exception& error) {
    words[0] = static_cast<char>(Said::kBad);
    length = std::min(std::strlen(error.what()), kMostReason);
    std::memcpy(words.data() + 1, error.what(), length);
  }
  [[maybe_unused]] const ssize_t written = write(out, words.data(), 1 + length);
  End();
}

std::string TakesTooMuch(const GrammarChecker::Limits& limits, bool time) {
  return "takes more than " +
         (time ? std::to_string(limits.processor.count()) + " ms of a processor"
               : std::to_string(limits.memory_bytes >> 20) + " MiB of memory") +
         " to compile";
}

// Why not, of a process that has ended. late: it was given up.
std::string Verdict(int status, const std::string& said, bool late, const GrammarChecker::Limits& limits) {
  if (!said.empty() && said[0] == static_cast<char>(Said::kGood)) return "";
  if (!said.empty() && said[0] == static_cast<char>(Said::kBad)) return said.size() > 1 ? said.substr(1) : "fails";
  if (late) return "takes more than " + std::to_string(limits.time.count()) + " ms to compile " + kJustNow;
  // Where it said nothing and was not out of time, it found no memory, or no stack.
  const bool out_of_time = said.empty() && WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF;
  return TakesTooMuch(limits, out_of_time);
}

std::string RunOne(GrammarCompiler& compiler, const GrammarSpec& grammar, const GrammarChecker::Limits& limits) {
  int ends[2];
  if (pipe(ends) != 0) return std::string("cannot be compiled ") + kJustNow;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    CompileOne(compiler, grammar, ends[1], limits);
  }
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return std::string("cannot be compiled ") + kJustNow;
  }
  pollfd ready = {ends[0], POLLIN, 0};  // or the end of it
  std::string said(kMostReason + 1, '\0');
  const bool late = poll(&ready, 1, static_cast<int>(limits.time.count())) <= 0;
  // What it wrote is written at once: PIPE_BUF holds it.
  said.resize(static_cast<size_t>(late ? 0 : std::max<ssize_t>(0, read(ends[0], said.data(), said.size()))));
  if (late) kill(child, SIGKILL);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return Verdict(status, said, late, limits);
}

// The process that knows the vocabulary, until its parent is gone.
[[noreturn]] void Serve(const Tokenizer& tokenizer, int64_t vocab_size, int socket,
                        const GrammarChecker::Limits& limits) {
  // No descriptor of the parent stays open for this process's sake.
  const int kept = dup2(socket, STDERR_FILENO + 1);
  close_range(static_cast<unsigned>(kept) + 1, ~0U, 0);
  const int nothing = open("/dev/null", O_RDWR);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) dup2(nothing, fd);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGCHLD, SIGPIPE}) std::signal(signal, SIG_DFL);
  GrammarCompiler compiler(tokenizer, vocab_size);
  try {
    compiler.Prepare();
    uint8_t kind = 0;
    GrammarSpec grammar;
    while (ReadAll(kept, &kind, 1) && ReadText(kept, kMaxGrammarBytes, &grammar.text)) {
      grammar.kind = static_cast<GrammarSpec::Kind>(kind);
      if (!WriteText(kept, RunOne(compiler, grammar, limits))) break;
    }
  } catch (const std::exception&) {  // of memory for the vocabulary: every grammar is refused
  }
  End();
}

}  // namespace

GrammarChecker::GrammarChecker(const Tokenizer& tokenizer, int64_t vocab_size, const Limits& limits) : limits_(limits) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw DeviceError(std::string("no socket for the process that compiles grammars: ") + std::strerror(errno));
  }
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Serve(tokenizer, vocab_size, ends[1], limits);
  }
  const int error = errno;
  close(ends[1]);
  socket_ = ends[0];
  if (pid_ > 0) return;
  close(socket_);
  throw DeviceError(std::string("no process to compile grammars in: ") + std::strerror(error));
}

GrammarChecker::~GrammarChecker() {
  close(socket_);
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string GrammarChecker::Ask(const GrammarSpec& grammar) {
  const auto kind = static_cast<uint8_t>(grammar.kind);
  std::string why;
  const bool good =
      WriteAll(socket_, &kind, 1) && WriteText(socket_, grammar.text) && ReadText(socket_, kMostReason, &why);
  if (!good) throw InvalidInput("the process that compiles grammars has ended");
  return why;
}

void GrammarChecker::Check(const GrammarSpec& grammar) {
  if (grammar.empty()) return;
  Validate(grammar);
  const std::string digest = DigestOf(grammar);
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(known_.begin(), known_.end(), [&](const auto& one) { return one.first == digest; });
  std::string why;
  if (found != known_.end()) {
    known_.splice(known_.begin(), known_, found);
    why = found->second;
  } else {
    why = Ask(grammar);
    if (!why.ends_with(kJustNow)) known_.emplace_front(digest, why);
    if (known_.size() > kMostKnown) known_.pop_back();
  }
  if (!why.empty()) throw InvalidInput(why);
}

}  // namespace stoch
