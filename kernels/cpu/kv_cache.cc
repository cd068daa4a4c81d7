#include "kernels/cpu/kv_cache.h"

#include "kernels/cpu/views.h"

namespace stoch::cpu {
namespace {

void CheckOperator(const char* name, const ScOperatorPtr& op, AttentionMode mode) {
  const std::string what = std::string("attention operator ") + name;
  if (!op) Reject("kv cache", what + " is missing");
  if (op->config.chunk_d != 0) {
    Reject("kv cache",
           what + ": SC parameter chunk_d = " + std::to_string(op->config.chunk_d) + ": allowed is 0 in attention");
  }
  const bool per_head = op->config.granularity == ScGranularity::kPerHead;
  const bool per_row = op->config.granularity == ScGranularity::kPerRow;
  if (mode == AttentionMode::kPerHead ? !per_head : !per_row) {
    Reject("kv cache", what + ": SC parameter granularity: allowed is " +
                           (mode == AttentionMode::kPerHead ? "per_head with attention = per_head"
                                                            : "per_row with attention = per_row, per_token"));
  }
  if (mode != AttentionMode::kPerToken) return;
  if (op->code == ScCode::kAsymmetric) {
    Reject("kv cache", what + ": SC parameter mode = unipolar: allowed is bipolar with attention = per_token");
  }
  if (op->config.group_a != 1 || op->config.group_b != 1) {
    Reject("kv cache", what + ": SC parameters group_a, group_b: allowed is 1 with attention = per_token");
  }
}

}  // namespace

void CpuKvCache::Check(const KvCacheSpec& spec) {
  if (spec.num_layers < 1 || spec.num_kv_heads < 1 || spec.head_dim < 1 || spec.page_tokens < 1 || spec.num_pages < 1) {
    Reject("kv cache", "layers, KV heads, head_dim, page_tokens and pages must be at least 1");
  }
  if (spec.precision == Precision::kFp16) Reject("kv cache", "precision fp16 needs a GPU");
  if (spec.mode == AttentionMode::kExact) return;
  CheckOperator("qk", spec.qk, spec.mode);
  CheckOperator("av", spec.av, spec.mode);
}

CpuKvCache::CpuKvCache(Device device, const KvCacheSpec& spec, ScLookupPtr qk, ScLookupPtr av)
    : device_(device), spec_(spec), qk_(std::move(qk)), av_(std::move(av)) {
  const int64_t slabs = Slabs(spec);
  const int64_t positions = slabs * spec.page_tokens;
  if (spec.mode == AttentionMode::kPerToken) {
    k_slab_ = position_blocks() * spec.head_dim * kBlockRows;
    v_slab_ = channel_blocks() * spec.page_tokens * kBlockRows;
    k_codes_ = MakeArray<uint8_t>(slabs * k_slab_);
    v_codes_ = MakeArray<uint8_t>(slabs * v_slab_);
    k_scales_ = MakeArray<float>(positions);
    v_scales_ = MakeArray<float>(positions);
  } else {
    k_values_ = MakeArray<float>(positions * spec.head_dim);
    v_values_ = MakeArray<float>(positions * spec.head_dim);
  }
}

int64_t CpuKvCache::Bytes(const KvCacheSpec& spec) {
  const int64_t positions = Slabs(spec) * spec.page_tokens;
  const int64_t float_size = static_cast<int64_t>(sizeof(float));
  if (spec.mode != AttentionMode::kPerToken) return 2 * positions * spec.head_dim * float_size;
  const int64_t k_slab = BlocksOf(spec.page_tokens) * spec.head_dim * kBlockRows;
  const int64_t v_slab = BlocksOf(spec.head_dim) * spec.page_tokens * kBlockRows;
  return Slabs(spec) * (k_slab + v_slab) + 2 * positions * float_size;
}

int64_t CpuKvCache::Slab(int layer, int32_t page, int64_t kv_head) const {
  return (static_cast<int64_t>(layer) * spec_.num_pages + page) * spec_.num_kv_heads + kv_head;
}

}  // namespace stoch::cpu
