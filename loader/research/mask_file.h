// SPDX-License-Identifier: Apache-2.0
// Hybrid masks (scmp_llm_hybrid_v1): what each operator of each layer computes in.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace stoch {

struct MaskFile {
  std::string name;           // for messages
  std::string default_arith;  // "": none given
  int64_t chunk_size = 128;
  std::map<std::string, std::vector<std::string>> schedule;  // by operator, an entry per layer: sc, fp, int2, ..., int8
  std::vector<std::string> unknown_keys;
};

// `bits` above 0 replaces those of every integer entry.
// Errors: InvalidInput, one sentence naming `name`, key, value and what is allowed.
MaskFile ParseMaskFile(const std::string& text, const std::string& name, int bits);

}  // namespace stoch
