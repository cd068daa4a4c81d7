// SC linears over quantized activations: the kernels and who takes which shape.
//
// Bits: every kernel gives sc_arithmetic section 5 exactly, so the choice is invisible.
#pragma once

#include "kernels/cuda/context.h"
#include "kernels/cuda/sc_layout.h"
#include "kernels/cuda/tables.h"

namespace stoch::cuda {

// What:   y = a @ w^T for each of `count` weights of one operator that share the activations (q, k and v; gate and up).
//         Picks the kernel by shape and operator. Scratch comes from ctx.workspace.
struct ScLinearTask {
  ScWeightView weight;
  LinearOutput out;
};
void LaunchScLinear(DeviceContext& ctx, const ScOperator& op, const ScTables& tables, const ScActivationView& a,
                    const ScLinearTask* tasks, int count);

// Decode: 1..8 tokens, count-table rows in shared memory (sc_decode.cu).
bool ScDecodeSupports(const ScOperator& op, const ScDims& dims, int64_t rows);
void LaunchScDecode(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScLinearTask* tasks,
                    int count);

// Prefill: binary tensor cores (sc_prefill.h).

// Any operator and shape: one product at a time from the 16-bit table (sc_generic.cu).
void LaunchScGeneric(DeviceContext& ctx, const ScTables& tables, const ScActivationView& a, const ScLinearTask* tasks,
                     int count);

}  // namespace stoch::cuda
