// SPDX-License-Identifier: Apache-2.0
// Where a command's output, progress and interrupts go: its process and terminal, or a program that runs it in process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace stoch::cli {

struct Host {
  std::function<void(std::string_view text)> print;  // instead of standard output
  std::function<void(int64_t done, int64_t total, const std::string& label)> progress;
  std::function<void()> check;  // between steps; what it throws ends the command
};

// Of the commands of this thread; nullptr: they have a process of their own.
const Host* CurrentHost();

// Makes a host the current one of this thread for a scope; scopes nest. Requires: the host outlives it.
class HostScope {
 public:
  explicit HostScope(const Host* host);
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;
  ~HostScope();

 private:
  const Host* before_;
};

}  // namespace stoch::cli
