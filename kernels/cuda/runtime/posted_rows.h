// SPDX-License-Identifier: Apache-2.0
// Rows that a kernel hands to the kernel behind it word by word (device/exchange.cuh): the reader polls the words and
// need not wait until the kernel in front has ended, which takes 0.9 us longer on an H200. It looks for them before it asks
// for weights: a block that begins late then has its row first.
//
// A kernel that posts waits for the kernels ahead (WaitForPrevious) before it posts or clears, and lets the next one
// start (StartNext) only then. So a kernel that has begun finds everything done that kernels did before the one in front
// of it, and of that one's row each word is 0 until it is there.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/base/row_post.h"

namespace stoch::cuda {

// The rows of one stream. Four take turns: the first of a sequence has one of its own and clears the other three, later
// ones take those in turn and clear the row of the kernel two before, whose reader has then ended. So whatever ran
// before, a sequence (a recorded graph, or what runs between two) needs only its first row to be 0, and leaves it 0.
class PostedRows {
 public:
  static constexpr int64_t kRowWords = int64_t{1} << 16;  // of the longest row
  static constexpr int kMaxParts = 4;                     // outputs of a kernel that lie apart

  // Errors: DeviceError, OutOfMemory. `supported`: whether kernels start before the ones in front have ended.
  PostedRows(Device device, cudaStream_t stream, bool supported);

  // Whether rows are posted from now on; at first they are not. Attention says so in every layer for what follows: posting
  // pays where it is a kernel that polls and posts too (docs/tuning.md).
  void Enable(bool enabled) { enabled_ = enabled; }

  // For the next kernel on the stream that posts, `words` of them at most; takes effect with Posted.
  RowPost Next(int64_t words) const;
  // After its launch: counts it, and forgets what an earlier kernel of this call offered or could have read: the row may
  // be cleared by the second kernel behind it.
  void Posted(int64_t words);
  // Of the kernel that was just launched: `count` floats at `data` are posted from `words` on, for the next call.
  void Offer(const void* data, int64_t count, const uint32_t* words);
  // The words of `count` floats at `data`, where the last kernel of the call before this one posts them; otherwise null.
  const uint32_t* Find(const void* data, int64_t count) const;
  // Begins a call of the backend.
  void CountCall();

  // Ends a sequence: before and after a recording, and before a graph is launched. May enqueue a memset.
  void End();

 private:
  struct Part {
    const uint32_t* data = nullptr;
    int64_t count = 0;
    const uint32_t* words = nullptr;
  };
  struct Offered {
    std::array<Part, kMaxParts> parts;
    int size = 0;
  };
  uint32_t* Row(int64_t index) const;  // of the kernel that posts as number `index` of the sequence

  Buffer memory_;  // [4][kRowWords]
  cudaStream_t stream_;
  bool supported_;
  bool enabled_ = false;
  int64_t posts_ = 0;                       // of the sequence
  std::array<int64_t, 2> last_words_ = {};  // of the last kernel that posted, and the one before
  Offered offered_;                         // by this call
  Offered readable_;                        // by the call before
};

}  // namespace stoch::cuda
