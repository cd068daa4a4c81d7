// SPDX-License-Identifier: Apache-2.0
// Which codes of probabilities p v multiplies, and which a row lists. Included by rows.cu alone.
#pragma once

#include "kernels/cuda/attention/wide/row_stages.cuh"

namespace stoch::cuda {

// Codes of a warp's row on their way to memory. The thermometers of most end in their first word: probabilities are codes
// relative to the largest of a row. Those beyond, which are few in long rows, are listed instead (WideArgs::lists), so that p v
// multiplies first words alone; where they are many, 64 positions are marked (kAllWords).
class RowCodes {
 public:
  static constexpr int kMostOfLane = 2;  // codes beyond of kRowEach, and lanes of 32 that have some, which are listed
  static constexpr int kMostLanes = 8;

  // list: [kWideListed], null if nothing is to be listed. needed: WideArgs::needed of the tile and head, from position `first`
  // on, in shared memory. add: what lifts a code beyond the first word to 128 and more.
  __device__ __forceinline__ RowCodes(uint32_t* list, uint32_t* needed, int first, uint32_t add)
      : list_(list), needed_(needed), first_(first), add_(add) {}

  // Codes of positions t .. t + 7, of all lanes, as p v shall have them. Where nothing is listed it multiplies all words.
  __device__ __forceinline__ uint2 Take(int t, uint2 codes) {
    if (list_ == nullptr) return codes;
    auto* const word = reinterpret_cast<uint8_t*>(needed_ + static_cast<uint32_t>(t - first_) / kWideValues);
    const uint2 lifted = make_uint2((codes.x + add_ | codes.x) & 0x80808080u, (codes.y + add_ | codes.y) & 0x80808080u);
    const bool has_beyond = (lifted.x | lifted.y) != 0;
    if (__any_sync(~0u, has_beyond)) {
      // A bit for each of the codes that is beyond.
      const auto bits = [](uint32_t four) { return (four >> 7) * 0x01020408u >> 24 & 0xf; };
      uint32_t beyond = bits(lifted.x) | bits(lifted.y) << 4;
      const bool are_few = __popc(beyond) <= kMostOfLane;
      uint32_t lanes = __ballot_sync(~0u, has_beyond && are_few);
      const bool fits = __popc(lanes) <= kMostLanes && count_ <= kWideListed - kMostOfLane * kMostLanes;
      if (has_beyond && !(are_few && fits)) word[1] = 1, beyond = 0;
      if (!fits) lanes = 0;
      while (lanes != 0) {
        if (beyond != 0) {
          const int i = __ffs(static_cast<int>(beyond)) - 1;
          const int shift = 8 * (i % 4);
          const uint32_t four = i < 4 ? codes.x : codes.y;
          list_[count_ + __popc(lanes & ((1u << threadIdx.x % 32) - 1))] =
              static_cast<uint32_t>(t + i) << 8 | (four >> shift & 0xff);
          codes.x &= i < 4 ? ~(0xffu << shift) : ~0u;
          codes.y &= i < 4 ? ~0u : ~(0xffu << shift);
          beyond &= beyond - 1;
        }
        count_ += __popc(lanes);
        lanes = __ballot_sync(~0u, beyond != 0);
      }
    }
    if ((codes.x | codes.y) != 0) word[0] = 1;
    return codes;
  }
  // Codes listed.
  __device__ __forceinline__ int count() const { return count_; }

 private:
  uint32_t* list_;
  uint32_t* needed_;
  int first_;
  uint32_t add_;
  int count_ = 0;
};

}  // namespace stoch::cuda
