// SPDX-License-Identifier: Apache-2.0
// How the angles of rotary positions are stretched beyond the context that a model was first trained with.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

namespace stoch {

// rope_type "linear": every frequency divided by the factor.
struct LinearRopeScaling {
  double factor = 1;
  friend bool operator==(const LinearRopeScaling&, const LinearRopeScaling&) = default;
};

// rope_type "llama3" (Llama 3.1 and later).
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
  friend bool operator==(const Llama3RopeScaling&, const Llama3RopeScaling&) = default;
};

// rope_type "yarn". attention_factor multiplies cosines and sines.
struct YarnRopeScaling {
  double factor = 1;
  double original_max_position_embeddings = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double attention_factor = 1;  // as given, or what mscale, mscale_all_dim and factor make of it
  bool truncate = true;         // the band of blended frequencies begins and ends at whole dimensions
  friend bool operator==(const YarnRopeScaling&, const YarnRopeScaling&) = default;
};

// rope_type "longrope" for sequences of at most original_max_position_embeddings; for longer ones transformers turns every
// position by other factors, so they are beyond the context of such a model here.
struct LongRopeScaling {
  std::vector<double> short_factor;  // of each pair: its frequency is divided by it
  int64_t original_max_position_embeddings = 0;
  double attention_factor = 1;  // multiplies cosines and sines
  friend bool operator==(const LongRopeScaling&, const LongRopeScaling&) = default;
};

using RopeScaling = std::variant<LinearRopeScaling, Llama3RopeScaling, YarnRopeScaling, LongRopeScaling>;

}  // namespace stoch
