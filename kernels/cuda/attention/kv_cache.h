// SPDX-License-Identifier: Apache-2.0
// The paged KV cache in device memory: floats, codes or halves, as the attention mode needs.
//
// A page holds page_tokens consecutive positions of every layer and KV head. Within one layer:
//   kExact, kPerHead, kPerRow  k, v F32 [page][kv_head][token][dim]
//   fp16                       the same in F16
//   kPerToken                  codes and one scale per token and KV head (docs/sc_arithmetic.md#6-in-the-model), packed
//                              by four for the table kernels: k_words [page][kv_head][dim / 4][token], byte = dim % 4;
//                              v_words [page][kv_head][token / 4][dim], byte = token % 4;
//                              k_scales, v_scales F32 [page][kv_head][token], k_scales of a layer whose qk is in MXINT8
//                              [page][kv_head][token][key_scales];
//                              the order of words within a page and head is sc/format/kv_layout.h's
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
#include "kernels/cuda/sc/format/hardware.h"
#include "kernels/cuda/sc/format/kv_layout.h"
#include "kernels/cuda/sc/format/lengths.h"
#include "kernels/plan/attention/shape.h"

namespace stoch::cuda {

// One layer of the cache as kernels see it; passed by value.
struct KvView : KvLayout {
  float* k = nullptr;
  float* v = nullptr;
  __half* k_half = nullptr;
  __half* v_half = nullptr;
  uint32_t* k_words = nullptr;
  uint32_t* v_words = nullptr;
  float* k_scales = nullptr;
  float* v_scales = nullptr;
  int32_t key_scales = 1;  // of a key: one for each block in MXINT8
  // SwapStreams of the operators, [masks][levels][stream words]; null where HasSwappedStreams says no.
  const uint32_t* qk_swapped = nullptr;
  const uint32_t* av_swapped = nullptr;

  // Keys and values as numbers: float, or __half of the fp16 baseline.
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

// The products of layers that the kernels of plain streams do not take.
struct MixedProducts {
  LengthTables qk, av;
  ScExtrasPtr qk_extras, av_extras;
  bool int_av = false;                                   // p v of integers or E4M3: a scale for every 128 positions
  HardwareTablesPtr qk_hardware = {}, av_hardware = {};  // null: ideal
  // Tables for wide tiles, of lengths kByTile. Layers share them.
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
  // The shape of a layer, of one query head a KV head.
  const AttentionShape& shape(int layer) const { return layers_.at(layer); }

 private:
  const KvCacheSpec::Products& At(int layer) const { return spec_.layers[static_cast<size_t>(layer)]; }

  Device device_;
  KvCacheSpec spec_;
  AttentionLayers layers_;
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
