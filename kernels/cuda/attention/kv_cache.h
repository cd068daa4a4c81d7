// SPDX-License-Identifier: Apache-2.0
// The paged KV cache in device memory: floats, codes or halves, as the attention mode needs.
//
// A page holds page_tokens consecutive positions of every layer and KV head. Within one layer:
// - kExact, kPerHead, kPerRow: k, v F32 [page][kv_head][token][dim]; in fp16, k, v F16 of that shape.
// - kPerToken: codes, packed in words of four, and one scale per token and KV head
// (docs/sc_arithmetic.md#6-in-the-model): k_words [page][kv_head][dim / 4][token], byte = dim % 4; v_words
// [page][kv_head][token / 4][dim], byte = token % 4; k_scales, v_scales F32 [page][kv_head][token]. If qk of the layer
// is in MXINT8, k_scales is [page][kv_head][token][key_scales]. kernels/cuda/sc/format/kv_layout.h defines the order of
// words within a page and head.
//
// With stripes (kernels/stripes.h), `stripes` consecutive pages of a pass share one page of this cache: local position
// j of page p of the pass is position p % stripes * page_tokens / stripes + j of page p / stripes.
//
// In kPerHead and kPerRow, every pass quantizes the whole window of a layer again. The codes go to one buffer, the size
// of one layer, that all layers use in turn.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention/ranks.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/hardware.h"
#include "kernels/cuda/sc/format/kv_layout.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/plan/attention/shape.h"

namespace stoch::cuda {

// One layer of the cache for kernels; passed by value. Arrays that the mode does not have are null; shapes are at the
// top of this file.
struct KvView : KvLayout {
  float* k = nullptr;
  float* v = nullptr;
  __half* k_half = nullptr;
  __half* v_half = nullptr;
  uint32_t* k_words = nullptr;
  uint32_t* v_words = nullptr;
  float* k_scales = nullptr;
  float* v_scales = nullptr;
  int32_t key_scales = 1;  // scales of a key vector: 1, or in MXINT8 one for each block of 32 dimensions
  // SwapStreams (kernels/sc/swap.h) of the operators of q k and p v, [masks][levels][stream words]; null unless
  // HasSwappedStreams(spec).
  const uint32_t* qk_swapped = nullptr;
  const uint32_t* av_swapped = nullptr;

  // Keys (values) as floats (T = float), or as halves of the fp16 baseline (T = __half).
  template <typename T>
  STOCH_HD const T* keys() const {
    if constexpr (std::is_same_v<T, __half>) return k_half;
    if constexpr (std::is_same_v<T, float>) return k;
  }
  template <typename T>
  STOCH_HD const T* values() const {
    if constexpr (std::is_same_v<T, __half>) return v_half;
    if constexpr (std::is_same_v<T, float>) return v;
  }
};

// The products q k and p v of a layer whose calls the uniform-length SC kernels do not all take: mixed lengths,
// integers, multiplier tables, hardware that is not ideal (faults, adders made of gates, narrow registers), or pairs of
// dilated attention.
struct MixedProducts {
  // Count tables and rules of q k and p v for all lengths, and the extras that the tables were made from.
  LengthTables qk, av;
  ScExtrasPtr qk_extras, av_extras;
  // p v in integers or E4M3: each 128 positions have a scale of their own
  bool int_av = false;
  HardwareTablesPtr qk_hardware = {}, av_hardware = {};  // tables of faults, adders and registers; null: ideal hardware
  // Rank tables for wide tiles (ranks.h), shared by layers with equal operators; null unless wide tiles take the
  // layer's mixed lengths (AttentionLengths::kByTile).
  std::shared_ptr<const RankTables> qk_ranks = {}, av_ranks = {};
};

class CudaKvCache final : public KvCache {
 public:
  CudaKvCache(DeviceContext& ctx, const KvCacheSpec& spec);

  Device device() const override { return device_; }
  const KvCacheSpec& spec() const override { return spec_; }
  int64_t bytes() const override { return static_cast<int64_t>(buffer_.bytes()); }

  // Returns the pointers and the layout of one layer. Requires: 0 <= layer < spec().num_layers.
  KvView view(int layer) const;
  // qk, av: the operators of a layer, for the uniform-length SC kernels. mixed: the layer's products for the other
  // kernels; null if the uniform-length SC kernels take every call, or without SC.
  const ScOperator& qk(int layer) const { return *(spec_.layers.empty() ? spec_.qk : At(layer).qk); }
  const ScOperator& av(int layer) const { return *(spec_.layers.empty() ? spec_.av : At(layer).av); }
  const MixedProducts* mixed(int layer) const {
    return mixed_.empty() ? nullptr : mixed_[spec_.layers.empty() ? 0 : static_cast<size_t>(layer)].get();
  }
  // The attention shape of a layer, as if it had one query head per KV head; ShapeOf (shape.h) sets the actual heads.
  const AttentionShape& shape(int layer) const { return layers_.at(layer); }

 private:
  const KvCacheSpec::Products& At(int layer) const { return spec_.layers[static_cast<size_t>(layer)]; }

  Device device_;
  KvCacheSpec spec_;
  AttentionLayers layers_;
  Buffer buffer_;
  Buffer qk_swapped_, av_swapped_;
  std::vector<std::unique_ptr<MixedProducts>> mixed_;  // [layers], or one element that all layers share
};

// Allocates a zeroed cache.
// Errors: InvalidInput for sizes that the kernels do not take (head_dim not a multiple of 4 up to 256, page_tokens not
// a power of two from 4 on, 2^31 numbers or more in a page), for operators that do not belong to the mode or are
// unipolar, for MXINT8 with key_scales other than one per 32 dimensions, and for stripes with fp16, whose sums have no
// fixed order.
std::unique_ptr<CudaKvCache> MakeKvCache(DeviceContext& ctx, const KvCacheSpec& spec);

// Bytes of device memory that MakeKvCache(spec) takes. Errors: as MakeKvCache.
int64_t KvCacheBytes(const KvCacheSpec& spec);

}  // namespace stoch::cuda
