// SPDX-License-Identifier: Apache-2.0
// The plan of a sweep as JSON: a grid of settings and single runs, treated as hostile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stoch {

// Settings: as text of --sc, comma-separated; later ones win.
struct SweepRun {
  std::vector<std::string> settings;                            // base first
  std::vector<std::pair<std::string, std::string>> parameters;  // besides the base, for plots
  size_t configuration = 0;                                     // of the grid and the runs; its seeds are neighbours
  std::optional<uint64_t> seed;                                 // the last setting, source_seed
};

struct SweepFile {
  std::string model, text;
  std::string tokenizer;        // a folder; "": the model's
  int64_t max_windows = 0;      // 0: all
  int64_t ctx = 0;              // 0: the default of perplexity
  int64_t windows_per_row = 0;  // of shards; 0: a row is a run
  std::string array;            // "R,C,K[,FILL]"; "": none
  std::string energy;           // a file; "": none
  std::string mp, smooth, mask;
  std::vector<std::string> metrics;  // sorted, each once
  std::vector<SweepRun> runs;        // the grid in file order, last name fastest, then the single runs; seeds fastest
  std::vector<uint64_t> seeds;       // empty: every configuration once
  std::optional<size_t> reference;   // the configuration that others are compared with, by its index
  std::vector<std::string> reference_settings;  // or by its settings, base first
  size_t base_settings = 0;  // how many of the settings of a run, and of the reference, are the base's
  std::vector<std::string> unknown_keys;
};

// {model, text, tokenizer, max_windows, ctx, windows_per_row, array, energy, base, grid{NAME: [values]}, runs: [SETTINGS], files{mp, smooth, mask},
// metrics, seeds: [numbers] or repeat: N, reference: INDEX or SETTINGS}. Exact configurations have no seeds.
// SETTINGS are a text or a list of texts; values are texts, numbers or booleans.
// Errors: InvalidInput, one sentence naming `name`, key, value and what is allowed; more than 65536 runs.
SweepFile ParseSweepFile(const std::string& text, const std::string& name);

}  // namespace stoch
