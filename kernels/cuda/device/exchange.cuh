// SPDX-License-Identifier: Apache-2.0
// Words that blocks of a kernel send to each other, or to the next kernel, through the L2. A word is 0 until it is sent
// ("posted"), so the receiver polls the word itself; there is no separate flag or barrier to wait for before the data.
//
// Requires: all blocks of a polling kernel are resident on the GPU at once (conditions: GridBarrier).
#pragma once

#include <cstdint>

#include "kernels/cuda/handover/row_post.h"
#include "kernels/math/elementary.h"

namespace stoch::cuda {

// A float as a nonzero word; words compare as unsigned integers in the order of the floats. Requires: not NaN.
__device__ __forceinline__ uint32_t OrderedWord(float x) {
  const uint32_t bits = FloatToBits(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrderedWord(uint32_t word) {
  return BitsToFloat((word & 0x80000000u) != 0 ? word & 0x7fffffffu : ~word);
}
// A float as a nonzero word; every NaN becomes the same word. FromSumWord gives the float back.
__device__ __forceinline__ uint32_t SumWord(float x) { return (x == x ? FloatToBits(x) : 0x7fffffffu) + 1; }
__device__ __forceinline__ float FromSumWord(uint32_t word) { return BitsToFloat(word - 1); }
// An integer greater than -2^31 as a nonzero word.
__device__ __forceinline__ uint32_t CountWord(int32_t x) { return static_cast<uint32_t>(x) ^ 0x80000000u; }
__device__ __forceinline__ int32_t FromCountWord(uint32_t word) { return static_cast<int32_t>(word ^ 0x80000000u); }

__device__ __forceinline__ void Post(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
// Post with release semantics: a thread that receives the word with ReceiveLast then sees everything that this block
// wrote before its last barrier.
__device__ __forceinline__ void PostLast(uint32_t* to, uint32_t word) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
__device__ __forceinline__ uint32_t Peek(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
// Loads a word that another GPU may post (relaxed, system scope); 0: not posted yet.
__device__ __forceinline__ uint32_t PeekAnywhere(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
// Post stores, and Peek loads, a 64-bit word (relaxed, GPU scope).
__device__ __forceinline__ void Post(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t Peek(const uint64_t* from) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}
// Loads four adjacent words, 16-byte aligned; each word is 0 until it is posted.
__device__ __forceinline__ uint4 Peek4(const uint32_t* from) {
  uint4 w;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "l"(from)
               : "memory");
  return w;
}
__device__ __forceinline__ void PeekAt(const uint32_t* from, uint32_t& word) { word = Peek(from); }
__device__ __forceinline__ void PeekAt(const uint32_t* from, uint4& words) { words = Peek4(from); }
__device__ __forceinline__ bool AreThere(uint32_t word) { return word != 0; }
__device__ __forceinline__ bool AreThere(const uint4& w) { return w.x != 0 && w.y != 0 && w.z != 0 && w.w != 0; }

// Policy for ReceiveAll: waits without a time limit, for words that kernels of this GPU post and that therefore arrive.
// For words of other GPUs see PeerPatience (peer_wait.cuh).
struct OwnPatience {
  static constexpr bool kAnywhere = false;
  __device__ __forceinline__ bool MayWait() const { return true; }
  template <typename Words>
  __device__ __forceinline__ void Look(const uint32_t* from, Words& words) const {
    PeekAt(from, words);
  }
};
// Polls until all words are nonzero or patience.MayWait() says to give up. words[k] comes from from + k * stride;
// entries that are nonzero on entry are not loaded.
template <int kCount, typename Words, typename Patience = OwnPatience>
__device__ __forceinline__ void ReceiveAll(const uint32_t* from, int stride, Words (&words)[kCount],
                                           Patience&& patience = {}) {
  bool all = false;
  while (!all && patience.MayWait()) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (!AreThere(words[k])) patience.Look(from + k * stride, words[k]);
    }
    all = true;
#pragma unroll
    for (int k = 0; k < kCount; ++k) all = all && AreThere(words[k]);
  }
}
// Polls until the word at `from` is nonzero, and returns it.
template <typename Word>
__device__ __forceinline__ Word Receive(const Word* from) {
  Word word;
  do word = Peek(from);
  while (word == 0);
  return word;
}
// Receive for a word sent by PostLast, with acquire semantics: everything that the sending block wrote before its last
// barrier is visible to the calling block after its next one.
__device__ __forceinline__ uint32_t ReceiveLast(const uint32_t* from) {
  uint32_t word;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  while (word == 0);
  return word;
}

// The bits of a float that a kernel posts for the next kernel (handover/row_channel.h). +0 is sent as -0, because 0
// means "not posted"; sums and quantized codes are the same for both zeros.
__device__ __forceinline__ uint32_t ValueWord(float value) {
  const uint32_t bits = FloatToBits(value);
  return bits == 0 ? 0x80000000u : bits;
}
__device__ __forceinline__ void PostValue(uint32_t* to, float value) { Post(to, ValueWord(value)); }
// Posts output i of a kernel. If several GPUs compute the row together (post.num_peers > 0), the word goes to the peers
// first, because that path takes longer, and then to this GPU's own row.
__device__ __forceinline__ void PostOutput(const RowPost& post, const PostPeers& peers, int i, float value) {
  if (post.num_peers == 0) return PostValue(post.words + i, value);
  const uint32_t word = ValueWord(value);
  const int at = peers.first + i + (i >= peers.half ? peers.half_shift : 0);
#pragma unroll 1
  for (int p = 0; p < post.num_peers; ++p) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(peers.words[p] + at), "r"(word) : "memory");
  }
  Post(post.words + at, word);
}
// Zeroes the words that `post` tells this kernel to clear for later kernels. Called by all threads of `blocks` blocks,
// of which this is number `block`. Requires: called after WaitForPrevious.
__device__ __forceinline__ void ClearRow(const RowPost& post, int block, int blocks) {
  const int count = post.clear_words / 4;
  const int threads = static_cast<int>(blockDim.x);
  for (int i = block * threads + static_cast<int>(threadIdx.x); i < count; i += blocks * threads) {
    reinterpret_cast<uint4*>(post.clear)[i] = uint4{};
  }
}

}  // namespace stoch::cuda
