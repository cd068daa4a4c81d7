// SPDX-License-Identifier: Apache-2.0
// Prologues and norms computed with a function table (kernels/math/nonlinear_table.h): f(x) is stored as floats, and
// the op continues from them.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Computes f(x) of rows whose prologue uses a table. The returned view is dense [rows, cols], in scratch.
// Bits: identical to the CPU: At(x) * x2, or (x * RsqrtAt(mean(x^2) + eps)) * weight with the sum of squares in
//       kRowLanes order.
TensorView LaunchFunction(DeviceContext& ctx, Scratch& scratch, const LinearCall& rows);

// RMSNorm of each head of q and k by table, in place. Requires: a checked call with a table.
void LaunchNormHeadsByTable(DeviceContext& ctx, const NormHeadsCall& call);

// Replaces a call (LinearCall or ExpertLinearCall, checked, with a table) by one without prologue whose x is f(x),
// computed into scratch.
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
