// SPDX-License-Identifier: Apache-2.0
// What a DecoderModel is made with, and its stages too.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "models/decoder/memory_plan.h"
#include "models/decoder/weights.h"
#include "models/sc_model_config.h"

namespace stoch {

struct DecoderOptions {
  Precision precision = Precision::kSc;
  ScModelConfig sc;  // read for kSc only
  PassShape shape;
  int64_t min_piece_rows = 128;  // micro_batch.h
  DecoderPlacement placement;
  ProgressFn progress;
};

}  // namespace stoch
