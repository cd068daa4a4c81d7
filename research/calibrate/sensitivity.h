// SPDX-License-Identifier: Apache-2.0
// Which operators of which layers a model loses most by in streams, and masks that leave those to integers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/sc_model_config.h"
#include "research/calibrate/single_products.h"

namespace stoch {

// One operator of one layer. Divergences in nats, of the model with this product alone in streams, and in integers; for
// qk and av every other product of attention is in int8, elsewhere everything is exact.
struct OperatorSensitivity {
  int layer = 0;
  ScOperatorId id = ScOperatorId::kQProj;
  double in_streams = 0, in_integers = 0;
  double gain() const { return in_streams - in_integers; }  // of integers
};

// The divergences of every product in streams, the largest gain first, ties by layer, then operator. `base`: as of ExactDivergence.
// Errors: InvalidInput for bits other than 2..8, fewer windows than asked, no product in streams.
std::vector<OperatorSensitivity> MeasureSensitivity(const EvaluatedText& text, const ScModelConfig& sc, int bits,
                                                    const std::string& base);

// A hybrid mask (scmp_llm_hybrid_v1) in which the first floor(share * all) products are integers of `bits`, and the
// others of their operators stay in streams. Masks of larger shares hold those of smaller ones.
// Errors: InvalidInput for a share that is not in 0..1.
std::string SensitivityMask(std::span<const OperatorSensitivity> ranked, const ScModelConfig& sc, int64_t layers,
                            double share, int bits);

}  // namespace stoch
