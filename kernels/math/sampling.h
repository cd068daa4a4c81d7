// SPDX-License-Identifier: Apache-2.0
// The arithmetic of picking a token: one source for every backend, so that every draw is the same everywhere.
//
// A draw must not depend on the order in which candidates are visited. Weights are therefore integers: sums of them
// are exact in any order and any split (docs/numerics.md).
#pragma once

#include <cstdint>

#include "kernels/math/elementary.h"
#include "kernels/math/host_device.h"

namespace stoch {

// The weight of the likeliest token; every other one's is proportional to its probability.
inline constexpr float kSampleWeightOne = 4294967296.0f;  // 2^32

// rint(e^((logit - max) / temperature) * 2^32). Sums of a vocabulary (below 2^31 tokens) fit in 64 bits.
// Requires: finite logit <= max, temperature > 0. Bits: identical on all backends.
STOCH_HD uint64_t SampleWeight(float logit, float max, float temperature) {
  return static_cast<uint64_t>(Rint(Exp((logit - max) / temperature) * kSampleWeightOne));
}

// A logit after the penalties of a token that occurs in the sequence, `generated` times outside the prompt.
STOCH_HD float Penalize(float logit, int32_t generated, float repeat, float presence, float frequency) {
  if (repeat != 1.0f) logit = logit > 0 ? logit / repeat : logit * repeat;
  return generated > 0 ? logit - (presence + frequency * static_cast<float>(generated)) : logit;
}

// The logit of a token that a mask does not allow, after bias and penalties: the lowest finite one. Its weight is 0 next to
// every logit above -1e38.
STOCH_HD float DisallowedLogit() { return BitsToFloat(0xff7fffffu); }
// Whether the mask `allowed`, a bit a token, allows a token.
STOCH_HD bool IsAllowed(const uint32_t* allowed, int32_t id) { return ((allowed[id / 32] >> (id % 32)) & 1u) != 0; }

// Integers in the order of floats: a < b exactly if OrderedKey(a) < OrderedKey(b); -0 and +0 are one key. NaN lies
// outside of the keys of numbers.
STOCH_HD uint32_t OrderedKey(float x) {
  const uint32_t bits = FloatToBits(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
STOCH_HD float KeyToFloat(uint32_t key) { return BitsToFloat((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key); }

// Rank of a token by (logit descending, id ascending): the first has the largest. Ids are below 2^31.
STOCH_HD uint64_t RankKey(float logit, int32_t id) {
  return static_cast<uint64_t>(OrderedKey(logit)) << 32 | static_cast<uint32_t>(~id);
}
STOCH_HD int32_t RankId(uint64_t rank) { return static_cast<int32_t>(~static_cast<uint32_t>(rank)); }
STOCH_HD float RankLogit(uint64_t rank) { return KeyToFloat(static_cast<uint32_t>(rank >> 32)); }

// The weight that the most likely tokens must reach together, of `total`, for top_p; at least 1.
STOCH_HD uint64_t TopPWeight(double top_p, uint64_t total) {
  const auto target = static_cast<uint64_t>(Rint(top_p * static_cast<double>(total)));
  return target > 0 ? target : 1;
}

// The least weight that min_p keeps.
STOCH_HD uint64_t MinPWeight(double min_p) { return static_cast<uint64_t>(Rint(min_p * 4294967296.0)); }

// floor(random * total / 2^64): the token is the first, in id order, at which the sum of weights exceeds it.
STOCH_HD uint64_t DrawThreshold(uint64_t random, uint64_t total) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(random, total);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(random) * total) >> 64);
#endif
}

}  // namespace stoch
