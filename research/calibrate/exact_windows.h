// SPDX-License-Identifier: Apache-2.0
// What calibration reads of a model: its exact forward over windows of a text, operand by operand, and its weights.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"
#include "research/reference.h"

namespace stoch {

struct CalibrationWindows {
  int64_t ctx = 512;  // tokens of a window
  int64_t count = 16;
  int threads = 1;  // of the host, for what no device computes
};

// Errors: InvalidInput for values out of range, or a text of fewer windows than asked.
void CheckWindows(const CalibrationWindows& windows, size_t tokens);

// Shows `observer` the operands of the exact fp32 forward of windows of `ids`, cut as perplexity cuts them, a window in
// one pass: what a call of an op shows is a whole call.
// Where the backend shows no operands, they are copied to the host (kernels/wrappers/observing_backend.h).
// Errors: InvalidInput as CheckWindows.
// Bits:   what is shown depends on no device, thread count and CPU variant.
void ObserveExactWindows(const CalibrationWindows& windows, const std::shared_ptr<Backend>& backend,
                         const std::string& model, std::span<const int32_t> ids, OpObserver* observer);

// The numbers of a tensor as float32, read by up to `threads` threads.
HostMatrix ReadWeight(const WeightSource& source, int threads);
// The matrix as a source. Keeps a pointer.
WeightSource SourceOf(const HostMatrix& w);

}  // namespace stoch
