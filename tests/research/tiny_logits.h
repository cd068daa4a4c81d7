// SPDX-License-Identifier: Apache-2.0
// Logits of a tiny model under settings and files, in whatever way its passes are made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "research/sc_files.h"

namespace stoch::test {

struct Way {
  int64_t rows = 64;    // of a pass
  int others = 0;       // sequences in its passes
  uint32_t number = 0;  // of the sequence
  int devices = 1;
  bool dealt = false;        // positions over the devices, in place of rows of weights
  const char* variant = "";  // of the CPU
  bool on_gpu = false;
};

// Of every row of one sequence of 40 tokens. Requires: `folder` has a tiny model. Errors: InvalidInput as
// Engine::Open.
std::vector<float> TinyLogits(const std::filesystem::path& folder, const std::string& settings,
                              const ScFileOptions& files, const Way& way = {});

// Whether there are numbers, and the same bits.
bool SameLogits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace stoch::test
