// SPDX-License-Identifier: Apache-2.0
// What is read off logits: output rows, argmax.
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/context.h"

namespace stoch::cpu {

void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out);
void Argmax(Context& context, const TensorView& logits, const TensorView& ids);

}  // namespace stoch::cpu
