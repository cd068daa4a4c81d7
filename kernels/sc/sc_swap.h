// SPDX-License-Identifier: Apache-2.0
// Side a as the thermometer of a product instead of side b.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sc/sc_operator.h"

namespace stoch {

// Whether side a can be the thermometer: a stream of side a has the ones of every lower level, and under every mask as
// many as side b's rank of that level where RanksAreDirect (kernels/plan/sc_traits.h).
bool CanSwap(const ScOperator& op);

// Streams of side b, their bits in the order in which side a's streams gain ones: count(mask, a, b) is the popcount of
// the first n bits of stream (mask, b), n being the ones of side a's stream (mask, a).
// Shapes:   [masks][levels of side b][stream_words]
// Requires: CanSwap(op).
std::vector<uint64_t> SwapStreams(const ScOperator& op);

}  // namespace stoch
