// SPDX-License-Identifier: Apache-2.0
// Threshold tables as JSON: those that were calibrated, and published ones with constants of their own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"
#include "models/sc_model_config.h"
#include "research/calibrate/calibrate_lengths.h"
#include "research/calibrate/exact_windows.h"

namespace stoch {

// What a file says about its making: {"command": ..., "version": ..., "model_sha256": ..., "text_sha256": ...}.
using TableOrigin = std::map<std::string, std::string>;

// The file of `stoch calibrate mp`, which ParseMpFile reads. Bits: the same text for the same table.
std::string MpTableJson(const CalibratedLengths& lengths, const TableOrigin& origin);

struct Rescaling {
  CalibrationWindows windows;
  ScModelConfig sc = HalvedScModelConfig();  // the chunks of its linears
};

// The table `text`, with metric_lo and metric_hi in every bucket that a layer of the model uses: the lower medians of
// the least and the largest metric of each call, a window of a layer.
// Errors: InvalidInput naming `name`, as ParseMpFile; for a wrapper, which has no thresholds of its own; fewer windows
//         than asked.
// Bits:   depend on no device, thread count or batch.
std::string RescaleTable(const Rescaling& rescaling, const std::string& text, const std::string& name,
                         const TableOrigin& origin, const std::shared_ptr<Backend>& backend, const std::string& model,
                         std::span<const int32_t> ids);

}  // namespace stoch
