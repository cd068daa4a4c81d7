// SPDX-License-Identifier: Apache-2.0
// The one order in which floats are summed, on every backend.
//
// A sum over an index i uses a fixed number of lanes. Lane j starts at +0 and takes the elements i = j, j + lanes,
// j + 2 * lanes, ... in ascending order; then lanes are folded by halves: lane j += lane j + s for s = lanes/2, ..., 1.
// The folded total gets + 0 at the end. The result does not depend on threads, tiles, batch or device.
//
// Missing elements of a tail add nothing: their lane keeps its value, or gets fma(0, 0, lane) or fma(x, -0, lane). The
// two differ only in a lane of -0, which a product that underflows leaves (fma(1e-25, -1e-25, +0) is -0), and the + 0
// makes them the same total. Sums of squares and of exponentials have no -0, so that their folds need no + 0.
#pragma once

#include "kernels/math/host_device.h"

namespace stoch {

// Dot products (exact linear, LM head, exact q k^T over head_dim, exact p v over absolute positions):
// lane = fma(x, w, lane). 16 lanes are one AVX-512 register or two AVX2 registers.
inline constexpr int kDotLanes = 16;

// Row reductions (sum of squares of RMSNorm: lane = fma(x, x, lane); sum of exponentials of softmax and
// log-softmax, and in double a KL divergence: lane = lane + e): one GPU block of 256 threads, a lane each.
inline constexpr int kRowLanes = 256;

// Turns -0 into +0 and leaves everything else: the last step of every fold.
STOCH_HD float PlusZero(float total) { return total + 0.0f; }
STOCH_HD double PlusZero(double total) { return total + 0.0; }

// Folds lanes[0..Lanes) by halves and returns the total. Destroys the array.
template <int Lanes, typename T>
STOCH_HD T FoldLanes(T* lanes) {
  static_assert((Lanes & (Lanes - 1)) == 0);
  for (int s = Lanes / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) lanes[j] = lanes[j] + lanes[j + s];
  }
  return PlusZero(lanes[0]);
}

}  // namespace stoch
