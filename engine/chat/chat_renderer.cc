// SPDX-License-Identifier: Apache-2.0
#include "engine/chat/chat_renderer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/chat/chat_files.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"

namespace stoch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLengthBytes = 4;
constexpr size_t kMaxFrameBytes = size_t{32} << 20;

[[noreturn]] void Throw(const char* call) {
  throw InvalidInput(std::string("cannot start the renderer of chat templates: ") + call + ": " + std::strerror(errno));
}

// The process is no more, and nobody here has ended it.
class Ended : public InvalidInput {
 public:
  using InvalidInput::InvalidInput;
};

// Processor time of a process in its life; more than any limit where that is not known.
std::chrono::nanoseconds ProcessorTime(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return std::chrono::hours(1);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Runs the program that it reads from standard input: wherever this one is installed, it brings it along.
std::string Loader() {
  const std::string bytes = std::to_string(kRenderChatScript.size());
  return "import os\n"
         "source = b''\n"
         "while len(source) < " +
         bytes +
         ":\n"
         "    part = os.read(0, " +
         bytes +
         " - len(source))\n"
         "    if not part:\n"
         "        raise SystemExit\n"
         "    source += part\n"
         "exec(compile(source, 'render_chat.py', 'exec'))\n";
}

}  // namespace

ChatRenderer::ChatRenderer(Settings settings, std::string source)
    : settings_(std::move(settings)), source_(std::move(source)) {
  Start();
}

ChatRenderer::~ChatRenderer() { Stop(); }

// Leaves no process that is not ready.
void ChatRenderer::Start() {
  try {
    StartAny();
  } catch (...) {
    Stop();
    throw;
  }
}

// With the first python that gets ready. Errors: what keeps the first one from it; InvalidInput for the template.
void ChatRenderer::StartAny() {
  std::exception_ptr first;
  for (const std::string& python : settings_.pythons) {
    try {
      Spawn(python);
      Greet(python);
    } catch (const InvalidInput&) {
      if (first == nullptr) first = std::current_exception();
      continue;
    }
    settings_.pythons = {std::string(python)};
    const SortedJson loaded = Ask({{"template", source_}}, settings_.render_limit);
    if (loaded.contains("error")) Fail("the chat template cannot be read: " + loaded["error"].get<std::string>());
    return;
  }
  std::rethrow_exception(first);
}

void ChatRenderer::Spawn(const std::string& python) {
  std::vector<std::string> words = {python, "-I", "-c", Loader()};
  if (settings_.unsafe) words.emplace_back("--unsafe-templates");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // Nothing else of the environment, which has secrets: a template is code.
  std::string language = "LC_ALL=C.UTF-8";
  std::array<char*, 2> environment = {language.data(), nullptr};
  std::array<int, 2> ends = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) Throw("socketpair");
  socket_ = ends[0];
  fcntl(socket_, F_SETFL, O_NONBLOCK);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // Ctrl-C is for who starts it
  const int error = posix_spawnp(&pid_, argv.front(), &actions, &attributes, argv.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error == 0) return;
  pid_ = 0;
  Stop();
  throw InvalidInput("the renderer of chat templates needs " + python + ": " + std::strerror(error) +
                     "; apt-get install python3-jinja2");
}

void ChatRenderer::Greet(const std::string& python) {
  const Clock::time_point end = Clock::now() + settings_.start_limit;
  Deadline deadline{end, end, {}};
  try {
    Send(kRenderChatScript, deadline);
    const SortedJson ready = Receive(deadline);
    if (!ready.contains("error")) return;
    Fail(ready["error"].get<std::string>() + "; --unsafe-templates renders without");
  } catch (const Ended&) {
    if (WIFSIGNALED(status_) && WTERMSIG(status_) == SIGSYS) {
      throw InvalidInput(
          "the renderer of chat templates is killed as it locks itself: a filter of system calls around this program "
          "has to allow seccomp");
    }
    throw InvalidInput("the renderer of chat templates needs jinja2 for " + python +
                       ": apt-get install python3-jinja2, or pip install jinja2");
  }
}

void ChatRenderer::Stop() {
  if (socket_ >= 0) close(std::exchange(socket_, -1));
  if (pid_ == 0) return;
  kill(pid_, SIGKILL);  // not reaped yet, so it is still that process
  while (waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
}

std::string ChatRenderer::Render(const OrderedJson& request) {
  const std::lock_guard lock(mutex_);
  if (pid_ == 0) Start();
  SortedJson answer;
  try {
    answer = Ask(request, settings_.render_limit);
  } catch (const Ended&) {  // perhaps some time ago
    Start();
    answer = Ask(request, settings_.render_limit);
  }
  if (answer.contains("text")) return answer["text"].get<std::string>();
  const std::string why = answer.value("error", "no answer");
  if (answer.value("raised", false)) throw InvalidInput(why);
  throw InvalidInput("the chat template fails: " + why);
}

SortedJson ChatRenderer::Ask(const OrderedJson& request, std::chrono::milliseconds limit) {
  const Clock::time_point now = Clock::now();
  Deadline deadline{now + limit, now + kBusy * limit, ProcessorTime(pid_) + limit};
  const std::string body = request.dump();
  if (body.size() > kMaxFrameBytes) {
    throw InvalidInput("the conversation has " + std::to_string(body.size()) + " bytes; allowed are " +
                       std::to_string(kMaxFrameBytes));
  }
  try {
    std::string frame;
    for (size_t i = 0; i < kLengthBytes; ++i) frame += static_cast<char>(body.size() >> (8 * i));
    Send(frame + body, deadline);
    return Receive(deadline);
  } catch (...) {
    Stop();  // or the rest of this answer would be the next request's
    throw;
  }
}

void ChatRenderer::Send(std::string_view bytes, Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!Wait(POLLOUT, deadline)) Fail("the chat template takes too long");
    } else if (errno != EINTR) {
      FailEnded();
    }
  }
}

SortedJson ChatRenderer::Receive(Deadline& deadline) {
  std::string bytes;
  size_t wanted = kLengthBytes;
  for (bool has_length = false; bytes.size() < wanted || !has_length;) {
    if (bytes.size() == wanted) {
      size_t size = 0;
      for (size_t i = 0; i < kLengthBytes; ++i) size |= static_cast<size_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
      if (size > kMaxFrameBytes) Fail("the renderer of chat templates answers too much");
      bytes.clear();
      wanted = size;
      has_length = true;
      continue;
    }
    std::array<char, 65536> part;
    const ssize_t got = recv(socket_, part.data(), std::min(part.size(), wanted - bytes.size()), 0);
    if (got > 0) {
      bytes.append(part.data(), static_cast<size_t>(got));
    } else if (got < 0 && errno == EAGAIN) {
      if (!Wait(POLLIN, deadline)) Fail("the chat template takes too long");
    } else if (got == 0 || errno != EINTR) {
      FailEnded();
    }
  }
  constexpr int kMaxDepth = 32;
  return ConsumeBoundedJson(std::move(bytes), "the renderer of chat templates", kMaxDepth, kMaxJsonFileValues,
                            INT64_MAX);
}

bool ChatRenderer::Wait(short events, Deadline& deadline) {
  const Clock::time_point now = Clock::now();
  if (now >= deadline.end) {
    const std::chrono::nanoseconds still = deadline.processor - ProcessorTime(pid_);
    if (still.count() <= 0) return false;
    deadline.end = std::min(deadline.last, now + still);
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.end - now).count();
  if (now >= deadline.end) return false;
  pollfd descriptor{socket_, events, 0};
  const int ready = poll(&descriptor, 1, static_cast<int>(left) + 1);
  return ready >= 0 || errno == EINTR;  // nothing yet: the caller asks again
}

void ChatRenderer::Fail(const std::string& what) {
  Stop();
  throw InvalidInput(what);
}

void ChatRenderer::FailEnded() {
  Stop();
  throw Ended("the chat template ends its renderer");
}

}  // namespace stoch
