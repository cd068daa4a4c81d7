// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention_formats.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/format_product.h"

namespace stoch::cpu {

void MultiplyKeys(const Simd& simd, const ScLookup& qk, const ScRows& q, int64_t n, const FormatKeys& keys,
                  float* out) {
  const ScChunks& chunks = q.chunks();
  alignas(64) float y[kBlockRows] = {};
  alignas(64) float scales[kBlockRows] = {};
  for (int64_t c = 0; c < chunks.count; ++c) {
    for (int64_t j = 0; j < keys.count; ++j) scales[j] = keys.scales[j * keys.key_scales + c];
    const ScLeft left = q.Left(n, chunks.begin(c));
    const uint8_t* block = keys.codes + chunks.begin(c) * kBlockRows;
    if (qk.op->config.arith == ScArith::kFp8E4m3) {
      AddE4m3Block(left.codes, chunks.dims(c), DecodeE4m3(block, chunks.dims(c)), q.scale(n, c), scales, y);
      continue;
    }
    alignas(64) int32_t acc[kBlockRows];
    simd.sc_block(qk.table(), &left, 1, 0, chunks.dims(c), block, 0, 1, acc);
    AddMxBlock(acc, q.scale(n, c), scales, y);
  }
  std::copy_n(y, keys.count, out);
}

void MultiplyValues(const AttentionWork& work, const AttentionTile& tile, const ScRows& p, int64_t n, int64_t visible,
                    float* out) {
  const int64_t first_page = work.FirstSeenPage(visible - 1);
  const uint8_t* left = p.Left(n, 0).codes;
  const int64_t size = p.chunks().size;
  std::vector<uint8_t> values(static_cast<size_t>(size * kBlockRows));
  float ones[kBlockRows];  // p has the scales of v
  std::fill_n(ones, kBlockRows, 1.0f);
  for (int64_t block = 0; block < work.cache.channel_blocks(); ++block) {
    alignas(64) float y[kBlockRows] = {};
    for (int64_t c = 0; c * size < visible; ++c) {
      const int64_t begin = std::max(c * size, first_page);
      const int64_t end = std::min((c + 1) * size, visible);
      if (begin >= end) continue;
      for (int64_t t = begin; t < end; ++t) {
        const uint8_t* page = work.cache.v_codes(work.slab(*tile.sequence, t, tile.kv_head));
        const uint8_t* codes = page + (block * work.page_tokens + t % work.page_tokens) * kBlockRows;
        std::copy_n(codes, kBlockRows, values.data() + (t - begin) * kBlockRows);
      }
      AddE4m3Block(left + begin, end - begin, DecodeE4m3(values.data(), end - begin), p.scale(n, c), ones, y);
    }
    std::copy_n(y, std::min<int64_t>(kBlockRows, work.head_dim - block * kBlockRows), out + block * kBlockRows);
  }
}

}  // namespace stoch::cpu
