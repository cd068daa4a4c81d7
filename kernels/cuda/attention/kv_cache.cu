// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/math/number_formats.h"
#include "kernels/plan/divide_up.h"
#include "kernels/plan/linear/mixed_traits.h"
#include "kernels/plan/scratch_layout.h"
#include "kernels/sc/swap.h"
#include "kernels/spec_check.h"

namespace stoch::cuda {
namespace {

constexpr int kMaxHeadDim = 256;

[[noreturn]] void Refuse(const std::string& parameter, int64_t value, const std::string& allowed) {
  throw InvalidInput("KV cache: " + parameter + " = " + std::to_string(value) + ", allowed: " + allowed);
}

void Validate(const KvCacheSpec& spec) {
  if (spec.num_layers < 1) Refuse("num_layers", spec.num_layers, "1 or more");
  if (spec.num_kv_heads < 1) Refuse("num_kv_heads", spec.num_kv_heads, "1 or more");
  if (spec.num_pages < 1) Refuse("num_pages", spec.num_pages, "1 or more");
  if (spec.head_dim < 4 || spec.head_dim > kMaxHeadDim || spec.head_dim % 4 != 0) {
    Refuse("head_dim", spec.head_dim, "multiples of 4 up to " + std::to_string(kMaxHeadDim));
  }
  if (spec.page_tokens < 4 || !std::has_single_bit(static_cast<unsigned>(spec.page_tokens))) {
    Refuse("page_tokens", spec.page_tokens, "powers of two from 4 on");
  }
  // Attention kernels keep offsets within a page in 32-bit integers.
  const int64_t page_elements = int64_t{spec.num_kv_heads} * spec.head_dim * spec.page_tokens;
  if (page_elements > std::numeric_limits<int32_t>::max()) {
    Refuse("page_tokens", spec.page_tokens, "less than 2^31 keys and as many values in a page");
  }
  CheckStripes(spec);
  if (spec.stripes > 1 && spec.precision == Precision::kFp16) {
    throw InvalidInput("KV cache: positions dealt over devices, expected another precision than fp16");
  }
  if (spec.mode == AttentionMode::kExact) return;
  if (spec.precision == Precision::kFp16) throw InvalidInput("KV cache: fp16 attention is exact, not stochastic");
  CheckKvOperators(spec);
  for (const KvCacheSpec::Products& layer : ProductsOf(spec)) {
    for (const ScOperatorPtr& op : {layer.qk, layer.av}) {
      if (op->code != ScCode::kAsymmetric) continue;
      throw InvalidInput("kv cache: SC parameter mode = unipolar: allowed is bipolar in attention on a GPU");
    }
    if (layer.qk->config.arith == ScArith::kMxInt8 && spec.key_scales != DivideUp(spec.head_dim, kMxBlock)) {
      Refuse("key_scales", spec.key_scales, "one for each 32 dimensions of a head");
    }
  }
}

// Sizes in bytes of the arrays of one layer, each rounded up for alignment: `value` for floats or halves, the other
// members for codes and scales.
struct LayerBytes {
  int64_t value = 0;  // floats or halves of k; v takes as many bytes
  // Codes of k; v takes as many bytes.
  int64_t words = 0;
  int64_t k_scales = 0;
  int64_t v_scales = 0;
  int64_t codes() const { return 2 * words + k_scales + v_scales; }
};

LayerBytes MakeLayerBytes(const KvCacheSpec& spec) {
  const int64_t pages = (spec.num_pages + spec.stripes - 1) / spec.stripes;
  const int64_t tokens = pages * spec.num_kv_heads * spec.page_tokens;
  const int64_t element = spec.precision == Precision::kFp16 ? 2 : 4;
  LayerBytes bytes;
  bytes.value = ScratchLayout::Aligned(tokens * spec.head_dim * element);
  bytes.words = ScratchLayout::Aligned(tokens * spec.head_dim);
  bytes.k_scales = ScratchLayout::Aligned(tokens * 4 * spec.key_scales);
  bytes.v_scales = ScratchLayout::Aligned(tokens * 4);
  return bytes;
}

int64_t TotalBytes(const KvCacheSpec& spec) {
  const LayerBytes bytes = MakeLayerBytes(spec);
  const int64_t codes = bytes.codes();
  switch (spec.mode) {
    case AttentionMode::kExact: return spec.num_layers * 2 * bytes.value;
    case AttentionMode::kPerToken: return spec.num_layers * codes;
    case AttentionMode::kPerHead:
    case AttentionMode::kPerRow: return spec.num_layers * 2 * bytes.value + codes;
  }
  return 0;
}

}  // namespace

CudaKvCache::CudaKvCache(DeviceContext& ctx, const KvCacheSpec& spec)
    : device_(ctx.device),
      spec_(spec),
      layers_(MakeAttentionLayers(spec, spec.num_kv_heads)),
      buffer_(AllocateDevice(ctx.device, static_cast<size_t>(TotalBytes(spec)))) {
  // Zeroes the cache, because vector loads read positions of the last page that no pass has written yet.
  STOCH_CUDA(cudaMemsetAsync(buffer_.data(), 0, buffer_.bytes(), ctx.stream));
  if (spec_.mode != AttentionMode::kExact) {
    std::vector<std::pair<std::vector<ScOperatorPtr>, std::shared_ptr<const RankTables>>> made;
    const auto ranks_of = [&](const ScOperatorPtr& op, const ScExtrasPtr& extras) {
      const std::span<const ScOperatorPtr> slots = OperatorsBySlot(op, extras);
      const std::vector<ScOperatorPtr> by_slot(slots.begin(), slots.end());
      auto found = std::find_if(made.begin(), made.end(), [&](const auto& one) { return one.first == by_slot; });
      if (found == made.end()) found = made.insert(found, {by_slot, RankTables::Make(ctx.device, by_slot)});
      return found->second;
    };
    for (const KvCacheSpec::Products& layer : ProductsOf(spec_)) {
      const AttentionLengths lengths = shape(static_cast<int>(mixed_.size())).lengths;
      if (lengths == AttentionLengths::kUniform && !spec_.dilated) {
        mixed_.push_back(nullptr);
        continue;
      }
      mixed_.push_back(std::make_unique<MixedProducts>(
          MixedProducts{LengthTables(ctx.device, ctx.tables, layer.qk, layer.qk_extras.get()),
                        LengthTables(ctx.device, ctx.tables, layer.av, layer.av_extras.get()), layer.qk_extras,
                        layer.av_extras, IntBits(layer.av->config.arith) > 0 || IsNumberFormat(layer.av->config.arith),
                        MakeHardwareTables(ctx.device, *layer.qk, spec_.head_dim),
                        MakeHardwareTables(ctx.device, *layer.av, spec_.num_pages * spec_.page_tokens)}));
      MixedProducts& mixed = *mixed_.back();
      const bool has_bytes = mixed.qk.view().bytes != nullptr && mixed.av.view().bytes != nullptr;
      const bool is_fast = lengths == AttentionLengths::kByRow || lengths == AttentionLengths::kByTile;
      STOCH_CHECK(!is_fast || has_bytes);  // the fast kernels of mixed lengths read byte-wide count tables
      if (lengths != AttentionLengths::kByTile) continue;
      mixed.qk_ranks = ranks_of(layer.qk, layer.qk_extras);
      mixed.av_ranks = ranks_of(layer.av, layer.av_extras);
    }
  }
  if (!HasSwappedStreams(spec)) return;
  qk_swapped_ = DeviceCopy(ctx.device, SwapStreams(*spec.qk));
  av_swapped_ = DeviceCopy(ctx.device, SwapStreams(*spec.av));
}

KvView CudaKvCache::view(int layer) const {
  STOCH_CHECK(layer >= 0 && layer < spec_.num_layers);
  const LayerBytes bytes = MakeLayerBytes(spec_);
  KvView view;
  view.num_kv_heads = spec_.num_kv_heads;
  view.head_dim = spec_.head_dim;
  view.page_tokens = spec_.page_tokens;
  view.page_shift = std::countr_zero(static_cast<unsigned>(spec_.page_tokens));
  char* next = static_cast<char*>(buffer_.data());
  const auto take = [&next](int64_t size) {
    char* part = next;
    next += size;
    return static_cast<void*>(part);
  };
  if (spec_.mode == AttentionMode::kPerToken) {
    next += layer * bytes.codes();
  } else {
    char* values = next + layer * 2 * bytes.value;
    next += spec_.num_layers * 2 * bytes.value;
    if (spec_.precision == Precision::kFp16) {
      view.k_half = reinterpret_cast<__half*>(values);
      view.v_half = reinterpret_cast<__half*>(values + bytes.value);
    } else {
      view.k = reinterpret_cast<float*>(values);
      view.v = reinterpret_cast<float*>(values + bytes.value);
    }
    if (spec_.mode == AttentionMode::kExact) return view;
  }
  // SwapStreams makes 64-bit words and kernels read 32-bit ones, low word first, which is their order in memory on a
  // little-endian host.
  view.qk_swapped = static_cast<const uint32_t*>(qk_swapped_.data());
  view.av_swapped = static_cast<const uint32_t*>(av_swapped_.data());
  view.k_words = static_cast<uint32_t*>(take(bytes.words));
  view.v_words = static_cast<uint32_t*>(take(bytes.words));
  view.k_scales = static_cast<float*>(take(bytes.k_scales));
  view.v_scales = static_cast<float*>(take(bytes.v_scales));
  if (qk(layer).config.arith == ScArith::kMxInt8) view.key_scales = static_cast<int32_t>(spec_.key_scales);
  return view;
}

std::unique_ptr<CudaKvCache> MakeKvCache(DeviceContext& ctx, const KvCacheSpec& spec) {
  Validate(spec);
  return std::make_unique<CudaKvCache>(ctx, spec);
}

int64_t KvCacheBytes(const KvCacheSpec& spec) {
  Validate(spec);
  return TotalBytes(spec);
}

}  // namespace stoch::cuda
