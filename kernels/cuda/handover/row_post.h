// SPDX-License-Identifier: Apache-2.0
// Where a kernel posts its row of outputs for the kernel behind it.
#pragma once

#include <climits>
#include <cstdint>

namespace stoch::cuda {

inline constexpr int kMaxPostPeers = 7;  // other GPUs that get a row as it is posted

// Where a kernel posts, and what it sets to 0 for those behind it. Parameters of kernels are cold when these begin, so this
// is small, and what few need is apart.
struct RowPost {
  uint32_t* words = nullptr;  // null: it does not post
  uint32_t* clear = nullptr;  // 16-byte aligned
  int32_t clear_words = 0;    // a multiple of 4
  int32_t num_peers = 0;      // other GPUs that get the row too: it is one that they make together

  explicit operator bool() const { return words != nullptr; }
};

// Places in a row that GPUs make together: output i of a kernel is word first + i, from `half` on first + half_shift + i, here and
// at each of the peers.
struct PostPeers {
  int32_t first = 0;
  int32_t half = INT_MAX;
  int32_t half_shift = 0;
  uint32_t* words[kMaxPostPeers] = {};
};

// A bounded wait for words that other GPUs post: where they do not come, the reader notes `mark` in `failed` and goes on.
struct PeerWait {
  int* failed = nullptr;  // mapped host memory; null: all words are this GPU's own
  int mark = 0;
};

}  // namespace stoch::cuda
