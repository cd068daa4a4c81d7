// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/stream_registry.h"

#include <utility>

namespace stoch::serve {

std::shared_ptr<CompletionExchange> StreamRegistry::Put(const std::shared_ptr<CompletionExchange>& exchange) {
  const std::lock_guard lock(mutex_);
  std::erase_if(running_, [](const auto& entry) { return entry.second.expired(); });
  return std::exchange(running_[exchange->answer_id()], exchange).lock();
}

void StreamRegistry::Replace(const std::shared_ptr<CompletionExchange>& exchange) {
  if (const auto before = Put(exchange)) before->AskToGiveWay();
}

}  // namespace stoch::serve
