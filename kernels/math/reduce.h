// The one order in which floats are summed, on every backend.
//
// A sum over an index i uses a fixed number of lanes. Lane j starts at +0 and takes the elements i = j, j + lanes,
// j + 2 * lanes, ... in ascending order; then lanes are folded by halves: lane j += lane j + s for s = lanes/2, ..., 1.
// The result does not depend on threads, tiles, batch or device. Missing elements of a tail add nothing (their lane
// keeps its value; adding +0 to a lane that is not -0 is the same thing, and no lane ever is -0).
#pragma once

#include "kernels/math/host_device.h"

namespace stoch {

// Dot products (exact linear, LM head, exact q k^T over head_dim, exact p v over absolute positions):
// lane = fma(x, w, lane). 16 lanes are one AVX-512 register or two AVX2 registers.
inline constexpr int kDotLanes = 16;

// Row reductions (sum of squares of RMSNorm: lane = fma(x, x, lane); sum of exponentials of softmax and
// log-softmax: lane = lane + e): one GPU block of 256 threads, a lane each.
inline constexpr int kRowLanes = 256;

// Folds lanes[0..Lanes) by halves and returns the total. Destroys the array.
template <int Lanes>
STOCH_HD float FoldLanes(float* lanes) {
  static_assert((Lanes & (Lanes - 1)) == 0);
  for (int s = Lanes / 2; s > 0; s /= 2) {
    for (int j = 0; j < s; ++j) lanes[j] = lanes[j] + lanes[j + s];
  }
  return lanes[0];
}

}  // namespace stoch
