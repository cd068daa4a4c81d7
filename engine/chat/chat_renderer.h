// SPDX-License-Identifier: Apache-2.0
// Chat templates rendered by jinja2, in a process that can do nothing else (render_chat.py).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "loader/json_types.h"

namespace stoch {

// One template and the process that renders it. A process that takes longer than the limit is ended, and started again
// for the next request; one that has ended by itself is started again for the request that finds it so. The limit is of
// a processor: on a busy machine a render may take kBusy times as long by the clock.
class ChatRenderer {
 public:
  struct Settings {
    std::vector<std::string> pythons;  // the first one that has jinja2 is used
    bool unsafe = false;               // without seccomp
    std::chrono::milliseconds start_limit{10'000};
    std::chrono::milliseconds render_limit{1'000};
  };
  static constexpr int kBusy = 10;

  // Starts the process and gives it the template.
  // Errors: InvalidInput: no jinja2 (with the command that installs it), a system that cannot confine the process, or a
  //         template that is none (with the line).
  ChatRenderer(Settings settings, std::string source);
  ChatRenderer(const ChatRenderer&) = delete;
  ChatRenderer& operator=(const ChatRenderer&) = delete;
  ~ChatRenderer();

  // The text of one conversation; the object of render_chat.py's requests: "messages", "tools", "kwargs", ... Members of
  // its objects are told to the template in their order, which is seen where one is written as JSON.
  // Errors: InvalidInput in the template's own words where it refuses the conversation; where it fails or takes too
  //         long, naming that.
  // Threads: safe; one at a time.
  std::string Render(const OrderedJson& request);

 private:
  // When an answer is too late.
  struct Deadline {
    std::chrono::steady_clock::time_point end;  // to be looked at again then
    std::chrono::steady_clock::time_point last;
    std::chrono::nanoseconds processor;  // of the process, in its life
  };

  void Start();
  void StartAny();
  void Spawn(const std::string& python);
  void Greet(const std::string& python);  // waits for the process to be ready
  void Stop();
  // Sends a frame and receives the next one. Errors: InvalidInput where the process is too slow, Ended where it ends; it
  // is stopped.
  SortedJson Ask(const OrderedJson& request, std::chrono::milliseconds limit);
  SortedJson Receive(Deadline& deadline);
  void Send(std::string_view bytes, Deadline& deadline);
  bool Wait(short events, Deadline& deadline);  // false: too late
  [[noreturn]] void Fail(const std::string& what);
  [[noreturn]] void FailEnded();

  Settings settings_;  // once one python has been found, it alone
  const std::string source_;
  std::mutex mutex_;
  int socket_ = -1;
  pid_t pid_ = 0;
  int status_ = 0;  // of the last one that is gone
};

}  // namespace stoch
