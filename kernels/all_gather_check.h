// SPDX-License-Identifier: Apache-2.0
// What every backend checks of an AllGather before any device does anything (call_check.h has the other ops).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace stoch {

// A checked AllGatherCall.
struct GatherPlan {
  int64_t rows = 0;
  std::vector<int64_t> begin;  // [from + 1]: columns [begin[i], begin[i + 1]) come from from[i]
  int64_t cols() const { return begin.back(); }
  int64_t cols_of(size_t i) const { return begin[i + 1] - begin[i]; }
  int64_t widest() const;  // largest cols_of
};

// Shapes, types, devices and overlaps of the call's operands. That their devices belong to the backend is its own to
// check.
// Errors: InvalidInput naming the site and the operand.
GatherPlan CheckAllGather(const AllGatherCall& call);

// Whether the prologue has a second operand (from2). Requires: the call was checked.
bool HasSecondOperand(const AllGatherCall& call);

// Whether from[i] already is its own columns of `to`, on one device.
bool IsInPlace(const AllGatherCall& call, const GatherPlan& plan, size_t i, const TensorView& to);

}  // namespace stoch
