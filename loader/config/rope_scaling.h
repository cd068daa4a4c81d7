// SPDX-License-Identifier: Apache-2.0
// How the angles of rotary positions are stretched beyond the context that a model was first trained with.
#pragma once

#include <variant>

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

using RopeScaling = std::variant<LinearRopeScaling, Llama3RopeScaling, YarnRopeScaling>;

}  // namespace stoch
