// SPDX-License-Identifier: Apache-2.0
// Counts of one's own for gate=counts: .npy of int8, int16 or int32, [masks, levels, levels] or [levels, levels].
#pragma once

#include <string>

#include "kernels/sc/count_table.h"

namespace stoch {

// The table of `bytes`, a file of that name; sha256 is left empty.
// Errors: InvalidInput, one sentence naming the file: no such array, masks that are no power of two in 1..256, a side
//         that no quantizer has, entries beyond 32767.
CountTable ParseCountFile(const std::string& bytes, const std::string& name);

}  // namespace stoch
