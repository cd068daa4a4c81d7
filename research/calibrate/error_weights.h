// SPDX-License-Identifier: Apache-2.0
// How much an error of an operator matters, by bucket of layers: read, or measured on a text.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"
#include "research/calibrate/calibrate_lengths.h"

namespace stoch {

// A file {"op:t0:lJ" or op: number >= 0}.
// Errors: InvalidInput naming `name`, key, value and what is allowed.
std::map<std::string, double> ParseErrorWeights(const std::string& text, const std::string& name,
                                                int64_t layer_buckets);

// W of every bucket "op:t0:lJ" that multiplies streams: the mean nll over the windows with only its products in SC,
// minus the exact one, at least 0. Attention is exact for a whole model or not at all, so that qk and av are measured
// with every other product of attention in int8, against all of them in int8.
// Errors: InvalidInput as CalibrateLengths.
std::map<std::string, double> MeasureErrorWeights(const LengthCalibration& calibration,
                                                  const std::shared_ptr<Backend>& backend, const std::string& model,
                                                  std::span<const int32_t> ids);

// For LengthCalibration::divergences: the mean divergence (KL, as stoch perplexity --kl) from the exact model over the
// windows with only one bucket in streams of `length` cycles, at least 0; qk and av as MeasureErrorWeights. A divergence
// is never negative and varies less from text to text than a difference of two nll. Exact logits wait in the file
// `base`, which is removed.
// Errors: InvalidInput as CalibrateLengths, or for a file that cannot be written.
std::map<std::string, double> MeasureDivergences(const LengthCalibration& calibration, int length,
                                                 const std::string& base, const std::shared_ptr<Backend>& backend,
                                                 const std::string& model, std::span<const int32_t> ids);
// The level next to the average that the budget asks for, above 0; ties to the shorter one.
int DivergenceLength(const LengthCalibration& calibration);

}  // namespace stoch
