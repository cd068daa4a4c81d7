// SPDX-License-Identifier: Apache-2.0
// Rows that a kernel hands to the kernel behind it word by word (device/exchange.cuh): the reader polls the words and
// need not wait until the kernel in front has ended, which takes 0.9 us longer on an H200. It looks for them before it asks
// for weights: a block that begins late then has its row first.
//
// A kernel that posts waits for the kernels ahead (WaitForPrevious) before it posts or clears, and lets the next one
// start (StartNext) only then. So a kernel that has begun finds everything done that kernels did before the one in front
// of it, and of that one's row each word is 0 until it is there.
//
// Several GPUs that make a row together post it to each other in the same way (comm/shared_rows.h): their linears and
// attention store each word on every GPU, and no kernel exchanges it.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/backend.h"
#include "kernels/cuda/base/row_post.h"

namespace stoch::cuda {

// What a device gives to a row that several make.
struct SharedPart {
  const float* from = nullptr;  // its outputs: `count` floats next to each other
  int64_t count = 0;
  RowPost post;
  PostPeers peers;
};
// All of such a row, on one of the devices.
struct SharedRow {
  const uint32_t* words = nullptr;
  const uint32_t* silu_by = nullptr;  // the row is Silu(words) * these; null: the words themselves
  float* to = nullptr;                // where it belongs: it is not there
  int64_t count = 0;
  int64_t own_begin = 0;  // columns [own_begin, own_end) are there
  int64_t own_end = 0;
  PeerWait wait;
  void (*settle)(const SharedRow& row, cudaStream_t stream) = nullptr;  // launches what puts it there
};

// The rows of one stream. Four take turns: the first of a sequence has one of its own and clears the other three, later
// ones take those in turn and clear the row of the kernel two before, whose reader has then ended. So whatever ran
// before, a sequence (a recorded graph, or what runs between two) needs only its first row to be 0, and leaves it 0.
class PostedRows {
 public:
  static constexpr int64_t kRowWords = int64_t{1} << 16;  // of the longest row
  static constexpr int kMaxParts = 4;                     // outputs of a kernel that lie apart

  // Errors: DeviceError, OutOfMemory. `supported`: whether kernels start before the ones in front have ended.
  PostedRows(Device device, cudaStream_t stream, bool supported);

  bool supported() const { return supported_; }

  // Whether rows are posted from now on; at first they are not. Attention says so in every layer for what follows: posting
  // pays where it is a kernel that polls and posts too (docs/tuning/decode.md).
  void Enable(bool enabled) { enabled_ = enabled; }

  // For the next kernel on the stream that posts, `words` of them at most; takes effect with Posted.
  RowPost Next(int64_t words) const;
  // The same of one whose outputs are `count` floats next to each other, which may be those that the op shares: then peers
  // are set.
  RowPost Next(const float* out, int64_t count, int64_t words, PostPeers* peers) const;
  // After its launch: counts it, and forgets what an earlier kernel of this call offered or could have read: the row may
  // be cleared by the second kernel behind it.
  void Posted(const RowPost& post, int64_t words);
  // Of the kernel that was just launched: `count` floats at `data` are posted from `words` on, for the next call.
  void Offer(const void* data, int64_t count, const uint32_t* words);
  // The words of `count` floats at `data`, where the last kernel of the call before this one posts them; otherwise null.
  const uint32_t* Find(const void* data, int64_t count) const;
  // Begins a call of the backend. Unless it polls a shared row, or settles it itself, that is settled.
  void CountCall(bool polls_shared);

  // ---- rows that several devices make
  // Of the op that is issued next: its outputs are posted to all of them, if a kernel does that.
  void Share(const SharedPart& part) { share_ = part; }
  // Whether the last Share was followed by a kernel that did. Forgets it.
  bool TakeShared(const float* from);
  // A row that the op just issued on every device made: for the next call.
  void OfferShared(const SharedRow& row) { shared_ = row; }
  // The row of `count` floats that belongs at `data`, if it is polled; null otherwise.
  const SharedRow* FindShared(const void* data, int64_t count) const;
  // The call polls it: nobody else reads it.
  void TakeShared() { shared_.reset(); }
  bool has_shared() const { return shared_.has_value(); }
  // Has it put where it belongs, where somebody reads memory.
  void Settle();
  // It is never posted: what was recorded does not run.
  void DropShared() { shared_.reset(); }
  // Which rows devices share in this sequence; null: none yet.
  const void* shared_by() const { return shared_by_; }
  void set_shared_by(const void* rows) { shared_by_ = rows; }

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

  Device device_;
  Buffer memory_;  // [4][kRowWords]
  cudaStream_t stream_;
  bool supported_;
  bool enabled_ = false;
  int64_t posts_ = 0;                       // of the sequence
  std::array<int64_t, 2> last_words_ = {};  // of the last kernel that posted, and the one before
  Offered offered_;                         // by this call
  Offered readable_;                        // by the call before
  std::optional<SharedPart> share_;
  bool is_shared_ = false;           // share_ was posted
  std::optional<SharedRow> shared_;  // that nobody has taken
  const void* shared_by_ = nullptr;
};

}  // namespace stoch::cuda
