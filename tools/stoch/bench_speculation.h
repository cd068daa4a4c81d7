// SPDX-License-Identifier: Apache-2.0
// stoch bench --speculate: tokens per second with and without guesses, in turns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/common_options.h"
#include "app/options/speculation_options.h"
#include "kernels/backend.h"

namespace stoch::cli {

struct SpeculationBenchOptions {
  ModelOptions model;
  DeviceOptions device;
  OutputOptions output;
  ArithmeticOptions arithmetic;
  SpeculationOptions speculation;
  std::vector<int64_t> sequences;  // that decode together, one test each
  int64_t tokens = 0;              // of each sequence
  int64_t repetitions = 0;
  double temperature = 0;
  bool told = false;          // answers are told, as where there is no tokenizer
  std::string format = "md";  // as in stoch bench
};

// Decodes two kinds of text, a prompt that is to be repeated with edits and a story, both with and without guesses. Models
// without a tokenizer, which have random weights, are told the answers (speculation_texts.h).
// Returns: kDone, or kCheckFailed where guesses changed an id.
// Errors:  InvalidInput, also for a context that is too short for prompt and tokens.
ExitCode RunSpeculationBench(const SpeculationBenchOptions& options, std::shared_ptr<Backend> backend);

}  // namespace stoch::cli
