// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/identity.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "loader/sha256.h"

namespace stoch::serve {

void Identity::SetParts(IdentityParts parts) {
  const std::lock_guard lock(mutex_);
  parts_ = std::move(parts);
  Compute();
}

void Identity::SetWeights(std::string weights) {
  const std::lock_guard lock(mutex_);
  weights_ = std::move(weights);
  Compute();
}

void Identity::Compute() {
  constexpr size_t kDigits = 32;
  fingerprint_.clear();
  if (weights_.empty()) return;
  // A JSON text: what separates the parts cannot be part of one.
  const OrderedJson all = {parts_.version,   parts_.config, parts_.tokenizer, parts_.chat_template,
                           parts_.precision, parts_.sc,     parts_.sc_files,  weights_};
  fingerprint_ =
      "stoch-" + Sha256Hex(all.dump(-1, ' ', true, OrderedJson::error_handler_t::replace)).substr(0, kDigits);
}

std::string Identity::Fingerprint() const {
  const std::lock_guard lock(mutex_);
  return fingerprint_;
}

OrderedJson Identity::Describe() const {
  const std::lock_guard lock(mutex_);
  const auto text = [](const std::string& part) { return part.empty() ? OrderedJson(nullptr) : OrderedJson(part); };
  return {{"weights", text(weights_)},
          {"config", text(parts_.config)},
          {"tokenizer", text(parts_.tokenizer)},
          {"chat_template", text(parts_.chat_template)},
          {"sc_files", text(parts_.sc_files)}};
}

}  // namespace stoch::serve
