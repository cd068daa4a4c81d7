// SPDX-License-Identifier: Apache-2.0
// Where a kernel posts its row of outputs for the next kernel (device/exchange.cuh: a posted word is nonzero).
#pragma once

#include <climits>
#include <cstdint>

namespace stoch::cuda {

inline constexpr int kMaxPostPeers = 7;  // other GPUs that a row is posted to

// Where a kernel posts its row, and which words it zeroes for later kernels. Kernel parameters are not in the constant
// cache when a kernel begins, so this struct is small; rarely used fields are in PostPeers.
struct RowPost {
  uint32_t* words = nullptr;  // the row, one word per output; null: the kernel does not post
  uint32_t* clear = nullptr;  // words to zero, 16-byte aligned; null if clear_words is 0
  int32_t clear_words = 0;    // number of words to zero, a multiple of 4
  int32_t num_peers = 0;      // number of other GPUs that get the row too (a row that GPUs compute together)

  explicit operator bool() const { return words != nullptr; }
};

// Where the outputs of this GPU lie in a row that several GPUs compute together, on this GPU and on each peer: output i
// is word first + i if i < half, else word first + half_shift + i.
struct PostPeers {
  int32_t first = 0;
  int32_t half = INT_MAX;
  int32_t half_shift = 0;
  uint32_t* words[kMaxPostPeers] = {};  // [num_peers]: the row's words on each peer
};

// A bounded wait for words that other GPUs post. If they do not arrive in time, the reader stores `mark` to `failed`
// and continues without them.
struct PeerWait {
  int* failed = nullptr;  // mapped host memory; null: the words are of this GPU's own kernels, wait without limit
  int mark = 0;           // nonzero value that identifies what failed
};

}  // namespace stoch::cuda
