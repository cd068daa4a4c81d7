// SPDX-License-Identifier: Apache-2.0
// Compiles a stranger's grammar where it can harm nobody: in a process that is ended once it takes too long or too much.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <utility>

#include "engine/grammar/grammar_compiler.h"

namespace stoch {

// A child of this process that knows the vocabulary, and one of its own for each grammar. What they find is kept by digest.
class GrammarChecker {
 public:
  struct Limits {
    std::chrono::milliseconds processor{500};
    std::chrono::milliseconds time{5000};       // of a busy machine
    int64_t memory_bytes = int64_t{512} << 20;  // besides the vocabulary
    int64_t stack_bytes = int64_t{2} << 20;     // less than any thread here has
  };

  // Forks: to be called before a process has many threads, and a device. The tokenizer is not needed any longer.
  // Errors: DeviceError where the system has no process.
  GrammarChecker(const Tokenizer& tokenizer, int64_t vocab_size, const Limits& limits);
  GrammarChecker(const Tokenizer& tokenizer, int64_t vocab_size) : GrammarChecker(tokenizer, vocab_size, Limits()) {}
  ~GrammarChecker();
  GrammarChecker(const GrammarChecker&) = delete;
  GrammarChecker& operator=(const GrammarChecker&) = delete;

  // Errors: InvalidInput: as GrammarCompiler::Compile, and for one that takes more than the limits.
  // Threads: any; one at a time.
  void Check(const GrammarSpec& grammar);

 private:
  std::string Ask(const GrammarSpec& grammar);  // why not; "": it is good

  const Limits limits_;
  std::mutex mutex_;  // of what follows
  int socket_ = -1;
  pid_t pid_ = 0;
  std::list<std::pair<std::string, std::string>> known_;  // digest, why not; used last in front
};

}  // namespace stoch
