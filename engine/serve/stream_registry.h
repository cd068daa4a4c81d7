// SPDX-License-Identifier: Apache-2.0
// The exchange that runs each kept answer just now: another one that takes the answer up must end it first.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "engine/serve/completion_exchange.h"

namespace stoch::serve {

// Threads: safe.
class StreamRegistry {
 public:
  // A new answer.
  void Add(const std::shared_ptr<CompletionExchange>& exchange) { (void)Put(exchange); }
  // From now on `exchange` runs its answer; the one before is asked to give way.
  void Replace(const std::shared_ptr<CompletionExchange>& exchange);

 private:
  std::shared_ptr<CompletionExchange> Put(const std::shared_ptr<CompletionExchange>& exchange);

  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<CompletionExchange>> running_;
};

}  // namespace stoch::serve
