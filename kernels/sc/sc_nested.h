// SPDX-License-Identifier: Apache-2.0
// Streams of different lengths side by side in one binary matrix product.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/sc/sc_operator.h"

namespace stoch {

// Side a's streams of `shorter` in the order of cycles of `longer`, so that with side b's ranks of `longer` their
// popcounts are the counts of `shorter`: [masks][levels][stream_words] of `longer`, as ScOperator::streams_a; the bits of
// cycles that `shorter` does not have are 0. Nothing where the cycles of `shorter` are not the first of `longer`, or
// one of them has no streams.
std::optional<std::vector<uint64_t>> NestStreams(const ScOperator& shorter, const ScOperator& longer);

// Whether NestStreams has streams for the operators of these configurations (MakeScOperator). Answers are kept, as every
// plan of mixed lengths asks and NestStreams takes milliseconds. Thread-safe.
bool StreamsNest(const ScOperator& shorter, const ScOperator& longer);

}  // namespace stoch
