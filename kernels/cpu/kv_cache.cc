// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/kv_cache.h"

#include "kernels/call_check.h"
#include "kernels/math/number_formats.h"
#include "kernels/spec_check.h"

namespace stoch::cpu {
namespace {

// Whether keys and values are kept as codes, or as floats that each pass quantizes.
bool KeepsCodes(AttentionMode mode) {
  switch (mode) {
    case AttentionMode::kPerToken: return true;
    case AttentionMode::kExact:
    case AttentionMode::kPerHead:
    case AttentionMode::kPerRow: return false;
  }
  return false;
}

}  // namespace

void CpuKvCache::Check(const KvCacheSpec& spec) {
  if (spec.num_layers < 1 || spec.num_kv_heads < 1 || spec.head_dim < 1 || spec.page_tokens < 1 || spec.num_pages < 1) {
    Reject({-1, "kv cache"}, "layers, KV heads, head_dim, page_tokens and pages must be at least 1");
  }
  if (spec.precision == Precision::kFp16) Reject({-1, "kv cache"}, "precision fp16 needs a GPU");
  static_assert(kBlockRows == 64);  // the pages that CheckStripes wants
  CheckStripes(spec);
  CheckKvOperators(spec);
  const int64_t blocks = (spec.head_dim + kMxBlock - 1) / kMxBlock;
  const auto fits = [&](const ScOperatorPtr& qk) {
    return qk == nullptr || qk->config.arith != ScArith::kMxInt8 || spec.key_scales >= blocks;
  };
  bool all_fit = fits(spec.qk);
  for (const KvCacheSpec::Products& layer : spec.layers) all_fit = all_fit && fits(layer.qk);
  if (!all_fit) Reject({-1, "kv cache"}, "keys in MXINT8 take " + std::to_string(blocks) + " key_scales");
}

namespace {

// dims: of the longest sum.
AttentionProduct MakeProduct(ScLookups& lookups, const ScOperatorPtr& op, const ScExtrasPtr& extras, int64_t dims) {
  AttentionProduct product;
  product.extras = extras;
  product.lookup = lookups.Get(op);
  if (extras == nullptr || extras->by_length.empty()) {
    product.by_slot = {product.lookup};
  } else {
    for (const ScOperatorPtr& one : extras->by_length) {
      product.by_slot.push_back(one == nullptr ? nullptr : lookups.Get(one));
      if (one != nullptr && product.by_slot.size() == 1) product.lookup = product.by_slot[0];  // the longest
    }
  }
  product.hardware = MakeScHardware(product.op(), dims);
  return product;
}

}  // namespace

CpuKvCache::CpuKvCache(Device device, const KvCacheSpec& spec, ScLookups* lookups) : device_(device), spec_(spec) {
  if (lookups != nullptr) {
    std::vector<KvCacheSpec::Products> layers = spec.layers;
    if (layers.empty()) layers.push_back({spec.qk, spec.av, nullptr, nullptr});
    for (const KvCacheSpec::Products& layer : layers) {
      qk_.push_back(MakeProduct(*lookups, layer.qk, layer.qk_extras, spec.head_dim));
      av_.push_back(MakeProduct(*lookups, layer.av, layer.av_extras, spec.num_pages * spec.page_tokens));
    }
  }
  memory_ = MakeArray<uint8_t>(Bytes(spec));
  Place(memory_.get());
}

CpuKvCache::CpuKvCache(const CpuKvCache& of, int layer, int64_t pages, uint8_t* memory)
    : device_(of.device_), spec_(of.spec_) {
  spec_.num_layers = 1;
  spec_.num_kv_heads = 1;
  spec_.num_pages = pages;
  spec_.stripes = 1;
  spec_.layers.clear();
  if (!of.qk_.empty()) {
    qk_.push_back(of.qk(layer));
    av_.push_back(of.av(layer));
  }
  Place(memory);
}

void CpuKvCache::Place(uint8_t* memory) {
  slab_pages_ = SlabPages(spec_);
  const int64_t slabs = Slabs(spec_);
  const int64_t positions = slabs * spec_.page_tokens;
  if (KeepsCodes(spec_.mode)) {
    k_slab_ = position_blocks() * spec_.head_dim * kBlockRows;
    v_slab_ = channel_blocks() * spec_.page_tokens * kBlockRows;
    k_codes_ = memory;
    v_codes_ = k_codes_ + slabs * k_slab_;
    k_scales_ = reinterpret_cast<float*>(v_codes_ + slabs * v_slab_);
    v_scales_ = k_scales_ + positions * spec_.key_scales;
  } else {
    k_values_ = reinterpret_cast<float*>(memory);
    v_values_ = k_values_ + positions * spec_.head_dim;
  }
}

int64_t CpuKvCache::Bytes(const KvCacheSpec& spec) {
  const int64_t positions = Slabs(spec) * spec.page_tokens;
  const int64_t float_size = static_cast<int64_t>(sizeof(float));
  if (!KeepsCodes(spec.mode)) return 2 * positions * spec.head_dim * float_size;
  const int64_t k_slab = BlocksOf(spec.page_tokens) * spec.head_dim * kBlockRows;
  const int64_t v_slab = BlocksOf(spec.head_dim) * spec.page_tokens * kBlockRows;
  return Slabs(spec) * (k_slab + v_slab) + (spec.key_scales + 1) * positions * float_size;
}

int64_t CpuKvCache::Slab(int layer, int32_t page, int64_t kv_head) const {
  return (static_cast<int64_t>(layer) * slab_pages_ + page) * spec_.num_kv_heads + kv_head;
}

}  // namespace stoch::cpu
