// SPDX-License-Identifier: Apache-2.0
// Rows that a kernel hands to the next kernel word by word (device/exchange.cuh): the reader polls the words and need not
// wait until the kernel before has ended, which takes 0.9 us longer on an H200. It looks for them before it asks for
// weights: a block that begins late then has its row first.
//
// A kernel that posts waits for the kernels before it (WaitForPrevious) before it posts or clears, and lets the next one
// start (StartNext) only then. So a kernel that has begun finds everything done that kernels did before the one before
// it, and of that one's row each word is 0 until it is there.
//
// Several GPUs that make a row together post it to each other in the same way (fabric/comm/shared_rows.h): their linears and
// attention store each word on every GPU, and no kernel exchanges it.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/backend.h"
#include "kernels/cuda/handover/row_post.h"

namespace stoch::cuda {

inline constexpr int64_t kChannelWords = int64_t{1} << 16;  // of the longest row
inline constexpr int kMaxRowOutputs = 4;                    // outputs of a kernel that lie apart

// The part of a row that one device makes, where several make it.
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
  float* to = nullptr;                // the memory that it belongs in, and is not in yet
  int64_t count = 0;
  int64_t own_begin = 0;  // columns [own_begin, own_end) are there
  int64_t own_end = 0;
  PeerWait wait;
  void (*settle)(const SharedRow& row, cudaStream_t stream) = nullptr;  // launches the kernel that puts it there
};
// One device's side of such rows, between the group (fabric/comm/shared_rows.h) and the ops of the device.
struct SharedSlot {
  std::optional<SharedPart> announced;  // of the op that is issued next
  bool is_posted = false;               // a kernel of that op posts it
  std::optional<SharedRow> offered;     // made by all; until an op polls it or has it settled
  const void* by = nullptr;             // the group whose rows this sequence shares; null: none yet
};

// Outputs of a kernel that posts them.
struct RowOutput {
  const float* data = nullptr;
  int64_t count = 0;
  int64_t first = 0;  // word of the row
};
struct RowOutputs {
  std::array<RowOutput, kMaxRowOutputs> parts = {};
  int size = 0;
  int64_t words = 0;       // of the whole row; 0: the kernel posts nothing
  bool can_share = false;  // it posts to peers, too, where size is 1

  void Add(const RowOutput& output) { parts[static_cast<size_t>(size++)] = output; }
};

// Words that a kernel may poll in place of floats in memory.
struct PolledRow {
  const uint32_t* words = nullptr;    // null: the floats are in memory
  const uint32_t* silu_by = nullptr;  // SharedRow
  PeerWait wait;
  bool is_shared = false;

  explicit operator bool() const { return words != nullptr; }
};

// The rows of one stream. Four take turns: the first of a sequence has one of its own and clears the other three, later
// ones take those in turn and clear the row of the kernel two before, whose reader has then ended. So whatever ran
// before, a sequence (a recorded graph, or the ops between two) needs only its first row to be 0, and leaves it 0.
class RowChannel {
 public:
  // supported: whether kernels start before the ones before them have ended. Errors: DeviceError, OutOfMemory.
  RowChannel(Device device, cudaStream_t stream, bool supported, SharedSlot* shared);

  // Begins a call of the backend. Unless it polls a shared row, or settles it itself, that is settled.
  void Begin(bool polls_shared);
  // The words of `count` floats at `data`, where the last kernel of the call before this one posts them or all devices do.
  PolledRow Poll(const void* data, int64_t count) const;
  // Calls launch(RowPost, PostPeers), which launches the next kernel on the stream, and offers its outputs to the next
  // call. No post where the channel cannot take the row; the kernel then must not poll either, so posting pays where the
  // kernels around it do it too (docs/tuning/decode.md): is_open says so. polled: the row that it polls if it posts;
  // a shared one that it does not poll is settled before.
  template <typename Launch>
  void Post(const RowOutputs& outputs, bool is_open, const PolledRow& polled, const Launch& launch) {
    PostPeers peers;
    const RowPost post = Take(outputs, is_open, polled, &peers);
    launch(post, peers);
    if (post) Offer(outputs, post);
  }
  // Has a shared row put in memory, for a kernel that reads it there.
  void Settle();
  // Ends a sequence: before and after a recording, and before a graph is launched. May enqueue a memset.
  void Close();

 private:
  struct Posted {
    const uint32_t* data = nullptr;
    int64_t count = 0;
    const uint32_t* words = nullptr;
  };
  struct Offered {
    std::array<Posted, kMaxRowOutputs> parts;
    int size = 0;
  };
  uint32_t* Row(int64_t index) const;  // of the kernel that posts as number `index` of the sequence
  RowPost Next(const RowOutputs& outputs, bool is_open, PostPeers* peers) const;
  RowPost Take(const RowOutputs& outputs, bool is_open, const PolledRow& polled, PostPeers* peers);
  void Offer(const RowOutputs& outputs, const RowPost& post);

  Device device_;
  Buffer memory_;  // [4][kChannelWords]
  cudaStream_t stream_;
  bool supported_;
  SharedSlot* shared_;
  int64_t posts_ = 0;                       // of the sequence
  std::array<int64_t, 2> last_words_ = {};  // of the last kernel that posted, and the one before
  Offered offered_;                         // by this call
  Offered readable_;                        // by the call before
};

}  // namespace stoch::cuda
