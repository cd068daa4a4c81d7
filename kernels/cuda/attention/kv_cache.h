// SPDX-License-Identifier: Apache-2.0
// The paged KV cache in device memory: floats, codes or halves, as the attention mode needs.
//
// A page holds page_tokens consecutive positions of every layer and KV head. Within one layer:
//   kExact, kPerHead, kPerRow  k, v F32 [page][kv_head][token][dim]
//   fp16                       the same in F16
//   kPerToken                  codes and one scale per token and KV head (docs/sc_arithmetic.md#6-in-the-model), packed
//                              by four for the table kernels: k_words [page][kv_head][dim / 4][token], byte = dim % 4;
//                              v_words [page][kv_head][token / 4][dim], byte = token % 4;
//                              k_scales, v_scales F32 [page][kv_head][token].
//                              Where IsTiled(), words of 16 tokens follow each other, of keys [dim / 4][token], of values
//                              [dim / 16][token / 4][dim % 16]. Loads are answered eight lanes at a time, a clock for each
//                              line of 128 bytes of the path that they share with shared memory; whether eight lanes take
//                              32 tokens, 32 dimensions, or both as a tensor core's operand does, this is two lines.
// With stripes (kernels/stripes.h), `stripes` consecutive pages of a pass share one here: position j of the page_tokens /
// stripes of page p that this device has is position p % stripes * page_tokens / stripes + j of page p / stripes.
// kPerHead and kPerRow quantize the whole window again in every pass, into one code layer that all layers share.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention/ranks.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/lengths.h"

namespace stoch::cuda {

// One layer of the cache as kernels see it; passed by value.
struct KvView {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  int32_t page_shift = 0;  // page_tokens = 1 << page_shift
  float* k = nullptr;
  float* v = nullptr;
  __half* k_half = nullptr;
  __half* v_half = nullptr;
  uint32_t* k_words = nullptr;
  uint32_t* v_words = nullptr;
  float* k_scales = nullptr;
  float* v_scales = nullptr;
  // SwapStreams of the operators, [masks][levels][stream words]; null where HasSwappedStreams says no.
  const uint32_t* qk_swapped = nullptr;
  const uint32_t* av_swapped = nullptr;

#if defined(__CUDACC__)
  // Offsets in elements; `slot` is the position within the page.
  __device__ __forceinline__ int64_t PageHead(int32_t page, int head) const {
    return static_cast<int64_t>(page) * num_kv_heads + head;
  }
  __device__ __forceinline__ int64_t Value(int32_t page, int head, int slot) const {
    return ((PageHead(page, head) << page_shift) + slot) * head_dim;
  }
  __device__ __forceinline__ int64_t Scale(int32_t page, int head, int slot) const {
    return (PageHead(page, head) << page_shift) + slot;
  }
  __device__ __forceinline__ int64_t KWord(int32_t page, int head, int word, int slot) const {
    return (PageHead(page, head) * (head_dim / 4) << page_shift) + KeyWord(word) + KeySlot(slot);
  }
  __device__ __forceinline__ int64_t VWord(int32_t page, int head, int group, int dim) const {
    return (PageHead(page, head) << (page_shift - 2)) * head_dim + ValueGroup(group) + ValueDim(dim);
  }

  // The same within a page and head. Of a tile: from a word of keys to the next, from four positions of values to the next
  // four, and from 16 dimensions to the next 16.
  static constexpr int kTile = 16;  // positions
  static constexpr int kTileKey = 16;
  static constexpr int kTileGroup = 16;
  static constexpr int kTileDims = 64;
  __device__ __forceinline__ bool IsTiled() const { return page_tokens >= kTile && head_dim % 16 == 0; }
  __device__ __forceinline__ int KeyWord(int word) const { return IsTiled() ? word * kTileKey : word << page_shift; }
  __device__ __forceinline__ int KeySlot(int slot) const {
    return IsTiled() ? (slot >> 4) * (4 * head_dim) + (slot & 15) : slot;
  }
  __device__ __forceinline__ int ValueGroup(int group) const {
    return IsTiled() ? (group >> 2) * (4 * head_dim) + (group & 3) * kTileGroup : group * head_dim;
  }
  __device__ __forceinline__ int ValueDim(int dim) const {
    return IsTiled() ? (dim >> 4) * kTileDims + (dim & 15) : dim;
  }
#endif
};

// The products of layers that the kernels of plain streams do not take.
struct MixedProducts {
  LengthTables qk, av;
  ScExtrasPtr qk_extras, av_extras;
  bool int_av = false;  // p v of integers: a scale for every 128 positions
  // What wide tiles need; null where they do not take the product. Layers share them.
  std::shared_ptr<const RankTables> qk_ranks = {}, av_ranks = {};
};

class CudaKvCache final : public KvCache {
 public:
  CudaKvCache(DeviceContext& ctx, const KvCacheSpec& spec);

  Device device() const override { return device_; }
  const KvCacheSpec& spec() const override { return spec_; }
  int64_t bytes() const override { return static_cast<int64_t>(buffer_.bytes()); }

  // Requires: 0 <= layer < spec().num_layers.
  KvView view(int layer) const;
  // The operators of a layer, for kernels of plain streams; mixed: what runs it instead, null where they do.
  const ScOperator& qk(int layer) const { return *(spec_.layers.empty() ? spec_.qk : At(layer).qk); }
  const ScOperator& av(int layer) const { return *(spec_.layers.empty() ? spec_.av : At(layer).av); }
  const MixedProducts* mixed(int layer) const {
    return mixed_.empty() ? nullptr : mixed_[spec_.layers.empty() ? 0 : static_cast<size_t>(layer)].get();
  }

 private:
  const KvCacheSpec::Products& At(int layer) const { return spec_.layers[static_cast<size_t>(layer)]; }

  Device device_;
  KvCacheSpec spec_;
  Buffer buffer_;
  Buffer qk_swapped_, av_swapped_;
  std::vector<std::unique_ptr<MixedProducts>> mixed_;  // of layers, or of all
};

// A zero-filled cache.
// Errors: InvalidInput for a shape the kernels do not take (head_dim not a multiple of 8 or above 256, page_tokens not
//         a power of two from 4 on), operators that do not belong to the mode or are not bipolar; modes other than
//         kPerToken with lengths of rows, integers, multiplier tables or the XNOR gate.
std::unique_ptr<CudaKvCache> MakeKvCache(DeviceContext& ctx, const KvCacheSpec& spec);

// Bytes of device memory MakeKvCache takes. Errors: as MakeKvCache.
int64_t KvCacheBytes(const KvCacheSpec& spec);

}  // namespace stoch::cuda
