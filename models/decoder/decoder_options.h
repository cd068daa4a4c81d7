// SPDX-License-Identifier: Apache-2.0
// What a DecoderModel is made with, and its stages too.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "models/decoder/memory_plan.h"
#include "models/decoder/weights.h"
#include "models/sc_model_config.h"

namespace stoch {

class RankLink;

struct DecoderOptions {
  Precision precision = Precision::kSc;
  ScModelConfig sc;  // read for kSc only
  PassShape shape;
  int64_t min_piece_rows = 128;  // micro_batch.h
  DecoderPlacement placement;
  ProgressFn progress;
  RankLink* ranks = nullptr;  // to the other processes of placement.ranks, which outlives the model
};

// Where a pass leaves a copy of its residual stream.
struct HiddenTap {
  int layers = -1;        // once so many decoder layers ran, 0 = of the embeddings; -1 = nowhere
  float* rows = nullptr;  // F32 [rows of the pass, hidden_size], on the host
};

}  // namespace stoch
