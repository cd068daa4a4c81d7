// SPDX-License-Identifier: Apache-2.0
// The results of `stoch bench --speculate`, in four forms.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/speculation/draft_source.h"

namespace stoch::cli {

// One test: so many sequences that go on from prompts of one kind.
struct SpeculationResult {
  std::string prompt;  // "edits", "story"; with a draft model and told answers "right 0.8"
  int64_t sequences = 0;
  int64_t prompt_tokens = 0;            // of the longest prompt
  int64_t tokens = 0;                   // of all sequences in one run, without the first of each
  std::vector<double> samples_ms;       // per repetition: of all passes after the prompts
  std::vector<double> with_samples_ms;  // the same with guesses
  int64_t passes = 0, with_passes = 0;  // of one run without and with guesses
  DraftCounts drafts;                   // of that run, all sequences together
  bool same_ids = true;                 // with and without, in every run

  double tokens_per_s() const;  // of the median run
  double with_tokens_per_s() const;
  // Median of the ratios of runs next to each other: tokens per second with guesses over those without.
  double gain() const;
};

struct SpeculationEnvironment {
  std::string model;
  std::string device;  // or several: "cuda:0,cuda:1"
  std::string device_name;
  std::string commit;
  std::string precision;
  std::string sc;
  std::string speculate;
  int64_t draft_tokens = 0;
  double temperature = 0;
  bool told = false;  // the answers were told: the model's own picks were not looked at
};

// format: "md", "csv", "json", "jsonl"; the JSON forms hold every repetition.
std::string FormatSpeculation(const SpeculationEnvironment& environment, const std::vector<SpeculationResult>& results,
                              const std::string& format);

}  // namespace stoch::cli
