#include "kernels/cpu/softmax.h"

namespace stoch::cpu {

void Softmax(const Simd& simd, float* scores, int64_t n) {
  float max = scores[0];
  for (int64_t i = 1; i < n; ++i) max = scores[i] > max ? scores[i] : max;
  const float sum = simd.exp_sum(scores, n, max, scores);
  for (int64_t i = 0; i < n; ++i) scores[i] = scores[i] / sum;
}

}  // namespace stoch::cpu
