// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/ring/places.h"

namespace stoch::cuda {

static_assert(sizeof(PassRow) == kPassRowBytes && sizeof(QueryTile) == kQueryTileBytes);
static_assert(sizeof(PassSequence) == kPassSequenceBytes && sizeof(DealtQuery) == kDealtQueryBytes);

QueryShare ShareAt(const ShareLayout& layout, uint8_t* share) {
  QueryShare at;
  at.words = reinterpret_cast<uint32_t*>(share + layout.words);
  at.scales = reinterpret_cast<float*>(share + layout.scales);
  at.score_max = reinterpret_cast<uint32_t*>(share + layout.score_max);
  at.lanes = reinterpret_cast<float*>(share + layout.lanes);
  at.weight_max = reinterpret_cast<uint32_t*>(share + layout.weight_max);
  at.sums = reinterpret_cast<int32_t*>(share + layout.sums);
  return at;
}

DealtPass RingPlaces::dealt(uint8_t* scratch) const {
  DealtPass dealt;
  dealt.positions = reinterpret_cast<int32_t*>(scratch + layout_.positions);
  dealt.row_sequence = reinterpret_cast<int32_t*>(scratch + layout_.row_sequence);
  dealt.rows = reinterpret_cast<PassRow*>(scratch + layout_.rows);
  dealt.slots = reinterpret_cast<int32_t*>(scratch + layout_.slots);
  dealt.tiles = reinterpret_cast<QueryTile*>(scratch + layout_.tiles);
  dealt.sequences = reinterpret_cast<PassSequence*>(scratch + layout_.sequences);
  dealt.pages = reinterpret_cast<int32_t*>(scratch + layout_.pages);
  return dealt;
}

KvView RingPlaces::window(uint8_t* scratch, int index, const KvView& cache, int kv_heads) const {
  uint8_t* const at = scratch + index * layout_.window_bytes;
  KvView view = cache;  // takes its shape and the swapped streams
  view.num_kv_heads = kv_heads;
  if (exact_) {
    view.k = reinterpret_cast<float*>(at + layout_.keys);
    view.v = reinterpret_cast<float*>(at + layout_.values);
    return view;
  }
  view.k_words = reinterpret_cast<uint32_t*>(at + layout_.keys);
  view.v_words = reinterpret_cast<uint32_t*>(at + layout_.values);
  view.k_scales = reinterpret_cast<float*>(at + layout_.key_scales);
  view.v_scales = reinterpret_cast<float*>(at + layout_.value_scales);
  return view;
}

}  // namespace stoch::cuda
