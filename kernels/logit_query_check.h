// SPDX-License-Identifier: Apache-2.0
// What every backend checks of queries about logits before it takes them.
#pragma once

#include <cstdint>

#include "kernels/logit_queries.h"

namespace stoch {

// Errors: InvalidInput for limits below 1 (0 entries are allowed).
void CheckLogitQueryLimits(const LogitQueryLimits& limits);

// Returns: how many biases and counts the picks have together.
// Errors:  InvalidInput naming the query and the value: more queries or entries than the limits, ids outside of the
//          vocabulary, a temperature, top_p, min_p or penalty out of its range, a pick that is not there.
int64_t CheckLogitQueries(const LogitQueries& queries, const LogitQueryLimits& limits);

}  // namespace stoch
