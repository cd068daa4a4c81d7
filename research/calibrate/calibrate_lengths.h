// SPDX-License-Identifier: Apache-2.0
// Thresholds of mixed stream lengths for every operator of a model, from what a text makes of its operands.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "loader/config/decoder_config.h"
#include "loader/research/mp_file.h"
#include "models/sc_model_config.h"
#include "research/calibrate/exact_windows.h"

namespace stoch {

// A value of LengthCalibration::metric: of amax, l2 and crest, each by 1 and -1, the first whose rank correlation with what the
// longest level gains over the shortest is largest, for each operator over all of its samples.
inline constexpr const char* kAutoMetric = "auto";

struct LengthCalibration {
  CalibrationWindows windows;
  ScModelConfig sc = HalvedScModelConfig();  // everything but the lengths
  std::vector<int> levels;                   // descending, at least 2
  double budget = 0.75;                      // average length over `ref`, by macs of the operators with lengths
  int ref = 0;                               // 0: the longest level
  bool chunks = false;                       // linears: a length for each (row, chunk)
  int64_t layer_buckets = 4;
  std::string metric = "amax";  // of rows: amax, l2, crest, auto
  int sign = 1;                 // 1 with auto
  double protect = 0;           // share of the channels of each linear that keep the longest level, [0, 1)
  // Factors of errors by "op:t0:lJ", else by operator; 1 where neither is there.
  std::map<std::string, double> weights;
  // In place of weights, where not empty: by "op:t0:lJ", how far the model is from the exact one with only that bucket
  // in streams of `divergence_length` cycles, one of the levels. Errors are squared then, as a divergence grows, and
  // scaled so that the samples of a bucket lose its divergence at that length.
  std::map<std::string, double> divergences;
  int divergence_length = 0;
};

struct CalibratedLengths {
  MpFile table;  // levels, sc_prec, halve, layer_buckets, buckets, dispatch, chunk_buckets, protected channels
  double average = 0, mac_average = 0;                    // what the table gives the samples
  std::map<std::string, std::optional<double>> fidelity;  // rank correlation of metric and gain, by operator
  // Rank correlations of all candidates where metrics were chosen, by operator: amax, -amax, l2, -l2, crest, -crest.
  std::map<std::string, std::vector<std::optional<double>>> candidates;
};

// Every operator in SC gets thresholds; each sampled row counts as the rows of its call that it stands for.
// Bits:   depend on no device, thread count or batch.
// Errors: InvalidInput before any work for values out of range, lengths that the operators of `sc` do not take, fewer
//         windows than asked; for a budget that the shortest levels exceed or the longest
//         one does not use up.
CalibratedLengths CalibrateLengths(const LengthCalibration& calibration, const std::shared_ptr<Backend>& backend,
                                   const std::string& model, std::span<const int32_t> ids);

// The same for several budgets: of `calibrations` that are alike but for budget, weights and divergences, from operands
// that are sampled once. Requires: at least one.
std::vector<CalibratedLengths> CalibrateLengths(std::span<const LengthCalibration> calibrations,
                                                const std::shared_ptr<Backend>& backend, const std::string& model,
                                                std::span<const int32_t> ids);

// The same checks, without the text. Errors: InvalidInput.
void CheckLengthCalibration(const LengthCalibration& calibration, const DecoderConfig& config);

}  // namespace stoch
