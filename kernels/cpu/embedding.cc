// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/embedding.h"

#include <cstring>

#include "kernels/call_check.h"
#include "kernels/cpu/pass.h"
#include "kernels/cpu/weight_reader.h"

namespace stoch::cpu {

void Embed(Context& context, const EmbeddingTable& table, const Pass& pass, const TensorView& out) {
  const WeightSource& source = static_cast<const CpuEmbedding&>(table).source();
  const std::vector<int32_t>& ids = LayoutOf(pass).ids;
  CheckEmbed(table, pass, static_cast<int64_t>(ids.size()), out);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= source.rows) {
      Reject({-1, "embed"}, "token id " + std::to_string(ids[i]) + " at row " + std::to_string(i) +
                                ", expected below " + std::to_string(source.rows));
    }
  }
  context.pool.ParallelFor(static_cast<int64_t>(ids.size()), [&](int64_t i, int) {
    float* row = out.ptr<float>() + i * out.step(0);
    const float* values = ReadRow(context.simd, source, ids[static_cast<size_t>(i)], row);
    if (values != row) memcpy(row, values, static_cast<size_t>(source.cols) * sizeof(float));
  });
}

}  // namespace stoch::cpu
