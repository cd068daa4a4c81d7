// SPDX-License-Identifier: Apache-2.0
// Keys and values of a pass as codes in the cache.
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/row_quantizer.h"

namespace stoch::cpu {
namespace {

// Codes of k or v of one token and KV head with the faults of stored codes, which they keep.
void ReadCached(const AttentionWork& work, const AttentionProduct& product, int op, int64_t kv_head, uint64_t row,
                std::vector<uint8_t>* codes) {
  const ScHardware* hardware = product.hardware.get();
  if (hardware == nullptr || !hardware->b.any()) return;
  const uint64_t key = FaultKey(hardware->seed(), FaultKind::kWeight, work.KeySite(op, kv_head), row);
  ReadCodes(product.op(), hardware->b, key, {}, 0, codes->data(), static_cast<int64_t>(codes->size()), nullptr);
}

}  // namespace

void AppendPerToken(Context& context, const AttentionWork& work) {
  const RowQuantizer quantize_k(context, *work.qk().lookup, HeadChunks(work.qk().op(), work.head_dim));
  const RowQuantizer quantize_v(context, *work.av().lookup, OneChunk(work.head_dim));
  for (const PassLayout::Sequence& sequence : work.sequences) {
    // Rows of one block of positions interleave in memory, so a thread takes a head.
    context.pool.ParallelFor(work.num_kv_heads, [&](int64_t h, int) {
      std::vector<uint8_t> codes(static_cast<size_t>(work.head_dim));
      for (int64_t i = 0; i < sequence.num_rows; ++i) {
        const int64_t row = sequence.first_row + i;
        const int64_t position = sequence.start_position + i;
        const int64_t slab = work.slab(sequence, position, h);
        const int64_t at = position % work.page_tokens;
        const int64_t col = h * work.head_dim;
        quantize_k(work.call.k.ptr<const float>() + row * work.call.k.step(0) + col, codes.data(),
                   work.cache.k_scales(slab) + at * work.cache.spec().key_scales);
        ReadCached(work, work.qk(), kQkOperator, h, FaultRow(sequence.number, position), &codes);
        uint8_t* k = work.cache.k_codes(slab) + at / kBlockRows * work.head_dim * kBlockRows + at % kBlockRows;
        for (int64_t d = 0; d < work.head_dim; ++d) k[d * kBlockRows] = codes[static_cast<size_t>(d)];

        quantize_v(work.call.v.ptr<const float>() + row * work.call.v.step(0) + col, codes.data(),
                   work.cache.v_scales(slab) + at);
        ReadCached(work, work.av(), kAvOperator, h, FaultRow(sequence.number, position), &codes);
        for (int64_t d = 0; d < work.head_dim; ++d) {
          work.cache.v_codes(slab)[(d / kBlockRows * work.page_tokens + at) * kBlockRows + d % kBlockRows] =
              codes[static_cast<size_t>(d)];
        }
      }
    });
  }
}

}  // namespace stoch::cpu
