// What is read off logits: output rows, argmax, log-probabilities.
#pragma once

#include <span>

#include "kernels/backend.h"
#include "kernels/cpu/context.h"

namespace stoch::cpu {

void GatherOutputRows(const Pass& pass, const TensorView& x, const TensorView& out);
void Argmax(Context& context, const TensorView& logits, const TensorView& ids);
void Score(Context& context, const TensorView& logits, std::span<const int32_t> ids, std::span<TokenScore> scores);

}  // namespace stoch::cpu
