// SPDX-License-Identifier: Apache-2.0
// What an Engine has; for engine.cc and sequence.cc alone.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "models/decoder/page_allocator.h"

namespace stoch {

// "1 position", "64 positions".
std::string Positions(int64_t count);

struct Engine::State {
  std::shared_ptr<Backend> backend;
  ModelFiles files;  // exact matrices may stay in its mapped files
  EngineOptions options;
  PassShape shape;
  std::unique_ptr<DecoderModel> model;
  PageAllocator pages{0};
  std::vector<std::string> notices;
  double load_ms = 0;
  struct InFlight {
    std::vector<StepItem> items;  // without sequence where that died
    int64_t output_rows = 0;
    std::vector<int32_t> picked;  // as in State
    std::vector<int32_t> logprob_of;
  };
  std::deque<InFlight> steps;
  int64_t output_rows = 0;  // of the step finished last
  // Of the output rows of that step; no index where nothing was asked.
  std::vector<int32_t> picked;      // [output_rows] index in picks of the model, or -1
  std::vector<int32_t> logprob_of;  // [output_rows] index in its log-probabilities, or -1
  std::vector<int32_t> picks;
  std::vector<LogProbAnswer> answers;
  Buffer argmax_ids;             // where a block's are read from
  std::vector<int32_t> holders;  // sequences that hold each page
  int64_t held_pages = 0;        // those that at least one holds
  StepObserver* observer = nullptr;

  void ForgetRows() {
    output_rows = 0;
    picked.clear();
    logprob_of.clear();
    picks.clear();
    answers.clear();
  }
};

}  // namespace stoch
