// SPDX-License-Identifier: Apache-2.0
// The closed form of an operator (closed_form.h) as int8 tensor cores and adders multiply it, for GPUs without binary
// products in hardware: a signed product of two codes is
//   sum over j of f[j] (field[j] xor n) + f[7] n + c + (e_h xor n) + (e_l xor n) + ((d AND m) xor n)
// of a weight's and an activation's parts. With the weight's boundary v = 16 h + l and n = [weight < 0]:
//   field[0] = v & 1, field[j] = v >> j for j = 1..6; xor n complements a field, as a signed byte, and a bit
// and of the activation the bytes f, the constant c of -2..0, bits e_h and d by h, bits e_l and m by l. The sign of the
// activation is in its parts.
// Source: docs/closed-form.md.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/sc/sc_operator.h"

namespace stoch {

// An activation's parts. Layout: read by kernels as four words.
struct ScInt8Entry {
  int8_t factors[8] = {};  // f
  uint32_t high = 0;       // bits 0 to 8: e_h of h = 0..8; 9 to 17: d; 18 and 19: -c
  uint32_t low = 0;        // bits 0 to 15: e_l of l = 0..15; 16 to 31: m
};
static_assert(sizeof(ScInt8Entry) == 16);
inline constexpr int kInt8Highs = 9;
inline constexpr int kInt8Lows = 16;

// Whether `op` has such a form: HasTileForm, and small factors for every pattern of its tables.
bool HasInt8Form(const ScOperator& op);

// [masks][256 codes of side a]; nothing where HasInt8Form is false. Not compared with the counts of `op`: exact where
// MakeScTileEntries, which is made of the same tables and compares them, has entries. Takes some 1 ms for 64 masks.
std::optional<std::vector<ScInt8Entry>> MakeScInt8Entries(const ScOperator& op);

// The signed product, as a GPU adds it up.
int Int8FormProduct(const ScInt8Entry& entry, uint8_t b);

}  // namespace stoch
