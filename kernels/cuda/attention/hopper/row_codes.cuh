// SPDX-License-Identifier: Apache-2.0
// Decides which codes of probabilities p v multiplies, and which are listed for outputs.cu to add. Included by rows.cu
// alone.
#pragma once

#include "kernels/cuda/attention/hopper/row_stages.cuh"

namespace stoch::cuda {

// Takes the codes of a warp's row before they are stored, and lists or flags the large ones. A code is relative to the
// row's largest probability, so the thermometers of most codes end in the first of their words. In a long row, the few
// codes whose thermometers are longer ("beyond" the first word) are listed (WideArgs::lists), so that p v multiplies
// first words alone. Blocks of kWideValues positions with too many such codes are flagged kAllWords instead.
class RowCodes {
 public:
  // A lane's codes beyond the first word are listed only if the lane has at most kMostOfLane of them (of kRowEach
  // codes), at most kMostLanes lanes of the warp have codes to list, and the list has room for all of these codes.
  static constexpr int kMostOfLane = 2;
  static constexpr int kMostLanes = 8;

  // list: [kWideListed]; null: nothing is listed, and p v multiplies all words. needed: flags of the tile and head
  // (WideArgs::needed) from position `first` on, in shared memory. add: four equal bytes; added to a code, such a byte
  // sets bit 7 exactly if the code is beyond the first word.
  __device__ __forceinline__ RowCodes(uint32_t* list, uint32_t* needed, int first, uint32_t add)
      : list_(list), needed_(needed), first_(first), add_(add) {}

  // Lists or flags the codes of positions t .. t + 7 of this lane, and returns them without the listed codes (0 in
  // their place). Called by all lanes of the warp.
  __device__ __forceinline__ uint2 Take(int t, uint2 codes) {
    if (list_ == nullptr) return codes;
    bool is_many = false;
    uint2 beyond = make_uint2((codes.x + add_ | codes.x) & 0x80808080u, (codes.y + add_ | codes.y) & 0x80808080u);
    if (__any_sync(~0u, (beyond.x | beyond.y) != 0)) {
      int left = __popc(beyond.x) + __popc(beyond.y);
      const uint32_t some = __ballot_sync(~0u, left > 0 && left <= kMostOfLane);
      const uint32_t two = __ballot_sync(~0u, left == kMostOfLane);
      const int count = __popc(some) + __popc(two);
      const bool fits = __popc(some) <= kMostLanes && count_ + count <= kWideListed;
      if (left > kMostOfLane || (left > 0 && !fits)) {
        is_many = true;
      } else {
        const uint32_t before = (1u << threadIdx.x % 32) - 1;
        uint32_t* to = list_ + count_ + __popc(some & before) + __popc(two & before);
#pragma unroll 1
        for (; left > 0; --left, ++to) {
          const bool is_low = beyond.x != 0;
          const int shift = __ffs(static_cast<int>(is_low ? beyond.x : beyond.y)) - 8;
          *to = static_cast<uint32_t>(t + (is_low ? 0 : 4) + shift / 8) << 8 |
                ((is_low ? codes.x : codes.y) >> shift & 0xff);
          const uint32_t taken = ~(0xffu << shift);
          if (is_low) {
            codes.x &= taken, beyond.x &= taken;
          } else {
            codes.y &= taken, beyond.y &= taken;
          }
        }
      }
      if (fits) count_ += count;
    }
    // Eight lanes hold the kWideValues positions of one flag word. The update is atomic, since the thread block's other
    // warps set the same flags for their rows.
    const uint32_t group = 0xffu << threadIdx.x % 32 / 8 * 8;
    const uint32_t marks = ((__ballot_sync(~0u, (codes.x | codes.y) != 0) & group) != 0 ? kSomeCode : 0) |
                           ((__ballot_sync(~0u, is_many) & group) != 0 ? kAllWords : 0);
    if (marks != 0 && threadIdx.x % 8 == 0) {
      atomicOr(needed_ + static_cast<uint32_t>(t - first_) / kWideValues, marks);
    }
    return codes;
  }
  // Number of codes that the row has listed so far.
  __device__ __forceinline__ int count() const { return count_; }

 private:
  uint32_t* list_;
  uint32_t* needed_;
  int first_;
  uint32_t add_;
  int count_ = 0;
};

}  // namespace stoch::cuda
