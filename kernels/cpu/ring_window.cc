// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/ring_window.h"

#include <cstring>

namespace stoch::cpu {
namespace {

// Positions of one page on one device.
int64_t PerPage(const KvCacheSpec& spec, int64_t stripes) { return spec.page_tokens / stripes; }

// One array of a slab of page_tokens positions: `rows` rows of positions, each position of `bytes` bytes.
// Codes of k: a row per channel. Codes of v: a row per block of channels, 64 bytes a position. Scales and exact numbers:
// one row.
struct Plane {
  uint8_t* data;  // first row in the slab
  int64_t rows;
  int64_t bytes;
};

struct Planes {
  Plane plane[4];
  int count;
};

Planes PlanesOf(const CpuKvCache& cache, int64_t slab) {
  const int64_t head_bytes = cache.spec().head_dim * static_cast<int64_t>(sizeof(float));
  const auto bytes = [](float* numbers) { return reinterpret_cast<uint8_t*>(numbers); };
  if (cache.spec().mode != AttentionMode::kPerToken) {
    return {{{bytes(cache.k_values(slab)), 1, head_bytes}, {bytes(cache.v_values(slab)), 1, head_bytes}}, 2};
  }
  return {{{cache.k_codes(slab), cache.spec().head_dim, 1},
           {cache.v_codes(slab), cache.channel_blocks(), kBlockRows},
           {bytes(cache.k_scales(slab)), 1, cache.spec().key_scales * static_cast<int64_t>(sizeof(float))},
           {bytes(cache.v_scales(slab)), 1, sizeof(float)}},
          4};
}

}  // namespace

int64_t RingPageBytes(const KvCacheSpec& spec) {
  KvCacheSpec page = spec;
  page.num_layers = page.num_kv_heads = page.stripes = 1;
  page.num_pages = 1;
  return CpuKvCache::Bytes(page) / spec.stripes;
}

int64_t PackStripe(const CpuKvCache& cache, const RingSource& source, uint8_t* slab) {
  const int64_t stripes = cache.spec().stripes;
  const int64_t count = PerPage(cache.spec(), stripes);
  uint8_t* to = slab;
  for (int64_t i = source.begin; i < source.end; ++i) {
    const int64_t page = source.sequence->pages[static_cast<size_t>(i)];
    const int64_t first = page % stripes * count;
    const Planes planes =
        PlanesOf(cache, cache.Slab(source.layer, static_cast<int32_t>(page / stripes), source.kv_head));
    for (int p = 0; p < planes.count; ++p) {
      const Plane& plane = planes.plane[p];
      for (int64_t row = 0; row < plane.rows; ++row) {
        memcpy(to, plane.data + (row * cache.spec().page_tokens + first) * plane.bytes,
               static_cast<size_t>(count * plane.bytes));
        to += count * plane.bytes;
      }
    }
  }
  return to - slab;
}

void UnpackStripe(const uint8_t* slab, const RingSource& source, const Stripe& stripe, const CpuKvCache& window) {
  const int64_t count = PerPage(window.spec(), stripe.count);
  const int64_t width = stripe.width();
  for (int64_t i = source.begin; i < source.end; ++i) {
    const Planes planes = PlanesOf(window, window.Slab(0, static_cast<int32_t>(i), 0));
    for (int p = 0; p < planes.count; ++p) {
      const Plane& plane = planes.plane[p];
      for (int64_t row = 0; row < plane.rows; ++row) {
        uint8_t* to = plane.data + row * window.spec().page_tokens * plane.bytes;
        for (int64_t j = 0; j < count; j += width) {  // positions in a row
          memcpy(to + stripe.Absolute(j) * plane.bytes, slab, static_cast<size_t>(width * plane.bytes));
          slab += width * plane.bytes;
        }
      }
    }
  }
}

}  // namespace stoch::cpu
