// SPDX-License-Identifier: Apache-2.0
// Rows of outputs that a kernel hands to the next kernel word by word (device/exchange.cuh): the writer posts each
// output as a nonzero word, the reader polls the words. The reader thus need not wait for the end of the writing
// kernel, which takes 0.9 us longer on an H200. A reader polls before it issues its loads of weights; a block that
// starts late then finds its row complete.
//
// A posting kernel waits for the kernels before it (WaitForPrevious) before it posts or clears any row, and only then
// lets the next kernel start (StartNext). So when a kernel begins, all kernels before its predecessor are complete, and
// each word of the predecessor's row is either 0 or posted.
//
// Several GPUs that compute a row together (a shared row, fabric/comm/shared_rows.h) post it to each other in the same
// way: linears and attention store each output word on every GPU, so no separate kernel exchanges the row.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/backend.h"
#include "kernels/cuda/handover/row_post.h"

namespace stoch::cuda {

inline constexpr int64_t kChannelWords = int64_t{1} << 16;  // words of the longest row
inline constexpr int kMaxRowOutputs = 4;  // output arrays of one kernel; each is contiguous, they need not be adjacent

// The part of a shared row that one GPU computes and posts to every GPU that shares the row.
struct SharedPart {
  const float* from = nullptr;  // the GPU's outputs in memory, contiguous
  int64_t count = 0;            // floats of the part
  // Where the kernel posts, and where the words go on the peers.
  RowPost post;
  PostPeers peers;
};
// A whole shared row, as one of the GPUs reads it.
struct SharedRow {
  const uint32_t* words = nullptr;    // [count] words to poll
  const uint32_t* silu_by = nullptr;  // [count]; the row is Silu(words) * silu_by; null: the row is `words` itself
  float* to = nullptr;  // memory for the row as floats; `settle` fills the columns that are not this GPU's own
  // Floats of the row.
  int64_t count = 0;
  int64_t own_begin = 0;  // columns [own_begin, own_end) of `to` are there already: this GPU computed them
  int64_t own_end = 0;
  PeerWait wait;  // time limit of the poll
  // Launches the kernel that receives the row and stores it to `to`.
  void (*settle)(const SharedRow& row, cudaStream_t stream) = nullptr;
};
// State of shared rows on one GPU: set by the group of GPUs (fabric/comm/shared_rows.h), used by the ops of this GPU.
struct SharedSlot {
  std::optional<SharedPart> announced;  // set if the next op issued on the GPU computes this part of a shared row
  bool is_posted = false;               // a kernel of that op posted the part
  // Shared row available to readers, until an op polls it or Settle stores it to memory.
  std::optional<SharedRow> offered;
  const void* by = nullptr;  // the group whose rows the current sequence of kernels shares; null: none yet
};

// One contiguous output array of a posting kernel.
struct RowOutput {
  // Outputs in device memory.
  const float* data = nullptr;
  // Floats of the array.
  int64_t count = 0;
  int64_t first = 0;  // index in the posted row of the array's first output
};
// All outputs of a posting kernel, as one row.
struct RowOutputs {
  std::array<RowOutput, kMaxRowOutputs> parts = {};
  // Entries of `parts` in use.
  int size = 0;
  int64_t words = 0;       // words of the whole row; 0: the kernel posts nothing
  bool can_share = false;  // the kernel can also post to other GPUs; needs size 1

  void Add(const RowOutput& output) { parts[static_cast<size_t>(size++)] = output; }
};

// Words that a kernel may poll instead of reading floats in memory.
struct PolledRow {
  const uint32_t* words = nullptr;    // words to poll; null: the floats are in memory
  const uint32_t* silu_by = nullptr;  // as SharedRow::silu_by; null: the values are `words` themselves
  // Time limit of the poll, if other GPUs post the words.
  PeerWait wait;
  bool is_shared_row = false;  // the words are a shared row

  explicit operator bool() const { return words != nullptr; }
};

// The posted rows of one stream. There are four rows. The first kernel of a sequence (a recorded graph, or the ops
// between two graphs) posts to a row of its own and clears the other three; later kernels use those three in rotation
// and clear the row of the second kernel before them, whose reader has ended. So a sequence only needs its first row to
// be zero, whatever ran before, and leaves that row zero.
class RowChannel {
 public:
  // supported: the GPU overlaps kernels (PDL); if false, nothing is ever posted. Errors: DeviceError, OutOfMemory.
  RowChannel(Device device, cudaStream_t stream, bool supported, SharedSlot* shared);

  // Begins a call of the backend: rows that the previous call posted become readable. Unless polls_shared is true (the
  // op polls a shared row or settles it itself), a pending shared row is stored to memory.
  void Begin(bool polls_shared);
  // The words of `count` floats at `data`, if the last kernel of the previous call posted them or all GPUs post them as
  // a shared row; else a PolledRow without words.
  PolledRow Poll(const void* data, int64_t count) const;
  // Calls launch(RowPost, PostPeers), which must launch the next kernel on the stream, and makes the kernel's outputs
  // readable for the next call. The RowPost is empty if the channel cannot take the row; the kernel then must not poll
  // either. Posting therefore pays only if the kernels before and after do it too (docs/tuning/decode.md); is_open says
  // so. polled: the row that the kernel polls if it posts; a pending shared row that it does not poll is stored to
  // memory first.
  template <typename Launch>
  void Post(const RowOutputs& outputs, bool is_open, const PolledRow& polled, const Launch& launch) {
    PostPeers peers;
    const RowPost post = Take(outputs, is_open, polled, &peers);
    launch(post, peers);
    if (post) Offer(outputs, post);
  }
  // Enqueues the kernel that stores a pending shared row to memory, for a kernel that reads the row there. Does nothing
  // if no row is pending.
  void Settle();
  // Ends a sequence: called before and after a graph is recorded, and before one is launched. May enqueue a memset.
  void Close();

 private:
  // An output array that was posted: `count` floats at `data`, and their words.
  struct Posted {
    const uint32_t* data = nullptr;
    int64_t count = 0;
    const uint32_t* words = nullptr;
  };
  // All output arrays that one kernel posted.
  struct Offered {
    std::array<Posted, kMaxRowOutputs> parts;
    int size = 0;
  };
  uint32_t* Row(int64_t index) const;  // the row of the sequence's posting kernel number `index`
  // The words that the next kernel posts to, and the words it clears; an empty RowPost if it must not post.
  RowPost Next(const RowOutputs& outputs, bool is_open, PostPeers* peers) const;
  // Next, and settles a pending shared row unless the kernel polls it.
  RowPost Take(const RowOutputs& outputs, bool is_open, const PolledRow& polled, PostPeers* peers);
  // Records the outputs that a launched kernel posts, so that the next call may poll them.
  void Offer(const RowOutputs& outputs, const RowPost& post);

  Device device_;
  Buffer memory_;  // [4][kChannelWords] words: the first row of a sequence, then three rotating rows
  cudaStream_t stream_;
  bool supported_;
  SharedSlot* shared_;
  int64_t posts_ = 0;                       // kernels of the sequence that posted a row so far
  std::array<int64_t, 2> last_words_ = {};  // words of the last row posted, and of the one before
  Offered offered_;                         // outputs that this call posted
  Offered readable_;                        // outputs that the previous call posted, which this call may poll
};

}  // namespace stoch::cuda
