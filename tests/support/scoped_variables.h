// SPDX-License-Identifier: Apache-2.0
// Environment variables that a test sets for a while.
#pragma once

#include <cstdlib>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stoch::test {

// An environment variable has a value as long as this lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name); before != nullptr) before_ = before;
    setenv(name, value, 1);
  }
  ~ScopedVariable() { before_.has_value() ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// Names, different ones, and values.
using Variables = std::vector<std::pair<const char*, const char*>>;

class ScopedVariables {
 public:
  explicit ScopedVariables(const Variables& variables) {
    for (const auto& [name, value] : variables) set_.emplace_back(name, value);
  }

 private:
  std::deque<ScopedVariable> set_;
};

}  // namespace stoch::test
