// SPDX-License-Identifier: Apache-2.0
// Side a as the thermometer of a product instead of side b.
#pragma once

#include <cstdint>
#include <optional>
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

// How many bits of SwapStreams(longer) side a's streams of `shorter` take: the count of `shorter` is the popcount of the
// first n bits of the stream of `longer`, n = ranks[mask][level of side a].
// Shapes:   [masks of longer][levels], 0..stoc_len of `shorter`
// Nothing where `longer` cannot be swapped, or some count of `shorter` is another.
std::optional<std::vector<uint8_t>> SwappedRanks(const ScOperator& shorter, const ScOperator& longer);

// Whether SwappedRanks has ranks for the operators of these configurations (MakeScOperator). Answers are kept, as every plan
// of mixed lengths asks and SwappedRanks takes milliseconds. Thread-safe.
bool CanSwapWithin(const ScOperator& shorter, const ScOperator& longer);

}  // namespace stoch
