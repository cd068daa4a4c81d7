// SPDX-License-Identifier: Apache-2.0
// The paged KV cache of the CPU.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/sc_hardware.h"
#include "kernels/cpu/sc_lookup.h"
#include "kernels/cpu/simd/simd.h"

namespace stoch::cpu {

// One of the two products of attention in one layer.
struct AttentionProduct {
  ScLookupPtr lookup;                // look-up of the operator that operands are quantized for
  std::vector<ScLookupPtr> by_slot;  // at each stream length; null: length 0
  ScExtrasPtr extras;                // null: one length, by_slot is `lookup`
  ScHardwarePtr hardware;            // null: ideal

  const ScOperator& op() const { return *lookup->op; }
  // Whether accumulators are more than sums of counts.
  bool accumulates() const { return hardware != nullptr && !HasPlainSums(op().config); }
  const ScLengthRule* rule() const { return extras == nullptr ? nullptr : extras->lengths.get(); }
};

// One (layer, page, KV head) is a slab. kPerToken: codes of k as blocks of 64 positions [block][head_dim][64], codes of
// v as blocks of 64 channels [block][page_tokens][64] - both what Simd::sc_block reads - and a scale per position of
// each, or key_scales of k. Other modes: k and v as floats [page_tokens][head_dim].
//
// With stripes, `stripes` consecutive pages share the slabs of one: position j of the page_tokens / stripes of page p that
// are here is position p % stripes * page_tokens / stripes + j of slabs p / stripes.
class CpuKvCache final : public KvCache {
 public:
  // Errors: InvalidInput for sizes below 1 or operators that do not fit the mode.
  CpuKvCache(Device device, const KvCacheSpec& spec, ScLookups* lookups);
  // A cache of one layer and one KV head with the products of a layer of `of`, its content in memory of the caller's
  // that has room for Bytes of its spec.
  CpuKvCache(const CpuKvCache& of, int layer, int64_t pages, uint8_t* memory);

  Device device() const override { return device_; }
  const KvCacheSpec& spec() const override { return spec_; }
  int64_t bytes() const override { return Bytes(spec_); }
  // Pages of slabs; PassLayout's, unless there are stripes.
  static int64_t SlabPages(const KvCacheSpec& spec) { return (spec.num_pages + spec.stripes - 1) / spec.stripes; }
  static int64_t Bytes(const KvCacheSpec& spec);
  static void Check(const KvCacheSpec& spec);

  const AttentionProduct& qk(int layer) const { return qk_[qk_.size() > 1 ? static_cast<size_t>(layer) : 0]; }
  const AttentionProduct& av(int layer) const { return av_[av_.size() > 1 ? static_cast<size_t>(layer) : 0]; }

  int64_t position_blocks() const { return BlocksOf(spec_.page_tokens); }  // blocks of positions a page
  int64_t channel_blocks() const { return BlocksOf(spec_.head_dim); }

  // kPerToken. `slab` is Slab(layer, page, kv_head).
  int64_t Slab(int layer, int32_t page, int64_t kv_head) const;
  uint8_t* k_codes(int64_t slab) const { return k_codes_ + slab * k_slab_; }
  uint8_t* v_codes(int64_t slab) const { return v_codes_ + slab * v_slab_; }
  // [page_tokens][key_scales]
  float* k_scales(int64_t slab) const { return k_scales_ + slab * spec_.page_tokens * spec_.key_scales; }
  float* v_scales(int64_t slab) const { return v_scales_ + slab * spec_.page_tokens; }

  // Other modes: [page_tokens][head_dim].
  float* k_values(int64_t slab) const { return k_values_ + slab * spec_.page_tokens * spec_.head_dim; }
  float* v_values(int64_t slab) const { return v_values_ + slab * spec_.page_tokens * spec_.head_dim; }

 private:
  static int64_t BlocksOf(int64_t n) { return (n + kBlockRows - 1) / kBlockRows; }
  static int64_t Slabs(const KvCacheSpec& spec) { return spec.num_layers * SlabPages(spec) * spec.num_kv_heads; }

  Device device_;
  KvCacheSpec spec_;
  std::vector<AttentionProduct> qk_, av_;  // one for all layers, or one a layer
  void Place(uint8_t* memory);

  int64_t slab_pages_ = 0;
  int64_t k_slab_ = 0;
  int64_t v_slab_ = 0;
  Array<uint8_t> memory_;  // owns the arrays below; empty if the caller owns them
  uint8_t* k_codes_ = nullptr;
  uint8_t* v_codes_ = nullptr;
  float* k_scales_ = nullptr;
  float* v_scales_ = nullptr;
  float* k_values_ = nullptr;
  float* v_values_ = nullptr;
};

}  // namespace stoch::cpu
