// SPDX-License-Identifier: Apache-2.0
// What is served, as a digest: two servers with the same one give the same bits.
#pragma once

#include <mutex>
#include <string>

#include "loader/json_types.h"

namespace stoch::serve {

// The parts of it, all as hex digests or plain text. Devices and limits are none of them: they change no bit.
struct IdentityParts {
  std::string version;        // of the program, its commit included
  std::string config;         // of config.json and generation_config.json, "" for random weights
  std::string tokenizer;      // of the tokenizer's files, "" without one
  std::string chat_template;  // "" without one
  std::string precision, sc;  // "sc", and its configuration in words
  std::string sc_files;       // of the files that it names, "" without one
};

// Threads: safe.
class Identity {
 public:
  void SetParts(IdentityParts parts);
  // weights: DigestWeights (engine/weights_digest.h), which takes as long as reading them does.
  void SetWeights(std::string weights);

  // "stoch-" and 32 hex digits of sha256 over everything above; "" until the weights are known.
  std::string Fingerprint() const;
  // The parts by name, null where not known yet.
  OrderedJson Describe() const;

 private:
  void Compute();

  mutable std::mutex mutex_;
  IdentityParts parts_;
  std::string weights_;
  std::string fingerprint_;
};

}  // namespace stoch::serve
