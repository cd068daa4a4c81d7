// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rope.h"

namespace stoch::cpu {

void Rope(float* x, int64_t num_heads, int64_t head_dim, const float* angles) {
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < num_heads; ++h) {
    float* first = x + h * head_dim;
    float* second = first + half;
    for (int64_t i = 0; i < half; ++i) {
      const float cosine = angles[i];
      const float sine = angles[half + i];
      const float x1 = first[i];
      const float x2 = second[i];
      first[i] = (x1 * cosine) - (x2 * sine);
      second[i] = (x2 * cosine) + (x1 * sine);
    }
  }
}

}  // namespace stoch::cpu
