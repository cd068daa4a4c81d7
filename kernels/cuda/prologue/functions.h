// SPDX-License-Identifier: Apache-2.0
// Tables of functions (kernels/math/nonlinear_table.h) in front of ops: f(x) as floats, from which the op goes on.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// f(x) of rows whose prologue has a table, dense in scratch.
// Bits:   as on the CPU: At(x) * x2, or (x * RsqrtAt(mean(x^2) + eps)) * weight, the sum of squares in kRowLanes order.
TensorView LaunchFunction(DeviceContext& ctx, Scratch& scratch, const LinearCall& rows);

// RMSNorm of heads in place. Requires: a checked call with a table.
void LaunchNormHeadsByTable(DeviceContext& ctx, const NormHeadsCall& call);

// The call as it goes on from f(x), which is in scratch. A LinearCall or an ExpertLinearCall, checked, with a table.
template <typename Call>
Call AfterFunction(DeviceContext& ctx, Scratch& scratch, const Call& call) {
  LinearCall rows;
  rows.site = call.site;
  rows.prologue = call.prologue;
  rows.x = call.x;
  rows.x2 = call.x2;
  rows.norm_weight = call.norm_weight;
  rows.norm_eps = call.norm_eps;
  rows.table = call.table;
  Call rest = call;
  rest.x = LaunchFunction(ctx, scratch, rows);
  rest.prologue = Prologue::kNone;
  rest.table = nullptr;
  return rest;
}

}  // namespace stoch::cuda
