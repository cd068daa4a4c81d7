// SPDX-License-Identifier: Apache-2.0
// Windows of a perplexity run that one of several machines has scored, as a file that others are added to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/logit_comparison.h"

namespace stoch {

// File, little-endian: the 8 bytes "STOCHNL1", int64 bytes of a JSON object {schema, key, model, config, precision, ctx,
// total_windows, tokens, kl, elapsed_ms, windows}, that object, then per prediction float64 nll and, with kl, a LogitComparison
// (float64 kld, logprob, base_logprob, int32 top, base_top); predictions in the order of `windows`.
struct PredictionPart {
  std::string key;  // sha256 of all that the parts of a run have in common
  std::string model, config, precision;
  int64_t ctx = 0;
  int64_t total_windows = 0;  // of the run
  int64_t tokens = 0;         // of the text
  bool has_kl = false;
  double elapsed_ms = 0;
  std::vector<int64_t> windows;              // that are here
  std::vector<double> nll;                   // [windows][ctx - 1]
  std::vector<LogitComparison> comparisons;  // the same with has_kl, else empty
};

// Makes it the content of the file in one step. Errors: InvalidInput naming the file.
void WritePredictionPart(const std::filesystem::path& path, const PredictionPart& part);
// Errors: InvalidInput naming the file: none of this kind, incomplete, or with windows that the run does not have.
PredictionPart ReadPredictionPart(const std::filesystem::path& path);

// All windows of a run in order, as one machine scores them.
// Errors: InvalidInput naming the part that is of another run, a window that is there twice, or those that are missing.
PredictionPart MergePredictionParts(std::span<const PredictionPart> parts, std::span<const std::string> names);

}  // namespace stoch
