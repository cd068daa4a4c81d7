// SPDX-License-Identifier: Apache-2.0
// The closed form of an operator (closed_form.h) as tensor cores multiply it: a signed product of two codes is
//   popcount(W & X) + q (s h - n) + u (-s r - n) + n c + (D AND L) xor n
// of a weight's and an activation's parts. With the weight's boundary 16 h + l, r = h + l, s its sign, n = [s < 0]:
//   W = h ones from bit 0 and l ones from bit 8 on, complemented where n
// and of the activation u = [x < 0], bits X and factors q and c; D is one of its 8 high steps, chosen by h, L one of its 16
// low steps, chosen by l. Blocks have 8 cycles and grids 128 levels: X has 23 bits and all factors fit in a signed byte.
// Source: docs/closed-form.md.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/sc/sc_operator.h"

namespace stoch {

// An activation's parts.
struct ScTileEntry {
  uint32_t bits = 0;  // X; bits 0 to 7 are its high steps
  uint16_t low_steps = 0;
  int8_t factor = 0;      // q with the sign of x
  int8_t correction = 0;  // c
};
inline constexpr int kTileFormBlock = 8;
inline constexpr uint32_t kTileFormBits = (1u << 23) - 1;

// Whether `op` has the closed form, streams of at most 128 cycles, and levels of side b that are the boundaries
// level + level / 64 of a grid of 128. Takes some 100 us.
bool HasTileForm(const ScOperator& op);

// [masks][256 codes of side a], compared with every count, or nothing where HasTileForm is false. Takes some 5 ms for 64
// masks.
std::optional<std::vector<ScTileEntry>> MakeScTileEntries(const ScOperator& op);

// The signed product, as the tensor cores add it up.
int TileFormProduct(const ScTileEntry& entry, uint8_t a, uint8_t b);

}  // namespace stoch
