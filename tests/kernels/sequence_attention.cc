// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/sequence_attention.h"

#include <algorithm>

#include "tests/kernels/device_tensor.h"

namespace stoch::test {

SequenceInputs::SequenceInputs(uint64_t seed, int64_t tokens, int64_t q_cols, int64_t kv_cols)
    : q(RandomMatrix(seed, tokens, q_cols)),
      k(RandomMatrix(seed + 1, tokens, kv_cols)),
      v(RandomMatrix(seed + 2, tokens, kv_cols)) {}

Matrix RowsOf(const Matrix& m, int64_t begin, int64_t count) {
  Matrix rows(count, m.cols);
  std::copy_n(m.values.begin() + begin * m.cols, count * m.cols, rows.values.begin());
  return rows;
}

Matrix HeadOf(const Matrix& m, int64_t head, int64_t head_dim) {
  Matrix result(m.rows, head_dim);
  for (int64_t t = 0; t < m.rows; ++t) {
    for (int64_t i = 0; i < head_dim; ++i) result.at(t, i) = m.at(t, head * head_dim + i);
  }
  return result;
}

Matrix RunAttentionParts(Backend& backend, Pass& pass, AttentionCall call, const std::vector<SequencePart>& parts,
                         bool norm_apart) {
  const SequenceInputs& any = *parts.front().inputs;
  Matrix q(0, any.q.cols), k(0, any.k.cols), v(0, any.v.cols);
  PassLayout layout;
  for (const SequencePart& part : parts) {
    layout.sequences.push_back(
        {static_cast<int32_t>(q.rows), static_cast<int32_t>(part.count), static_cast<int32_t>(part.begin), part.pages});
    const auto append = [&](Matrix& to, const Matrix& from) {
      const Matrix rows = RowsOf(from, part.begin, part.count);
      to.values.insert(to.values.end(), rows.values.begin(), rows.values.end());
      to.rows += part.count;
    };
    append(q, part.inputs->q);
    append(k, part.inputs->k);
    append(v, part.inputs->v);
  }
  layout.ids.resize(static_cast<size_t>(q.rows));
  backend.UploadPass(pass, layout);
  const DeviceTensor dq(backend, {q.rows, q.cols}, q.values);
  const DeviceTensor dk(backend, {k.rows, k.cols}, k.values);
  const DeviceTensor dv(backend, {v.rows, v.cols}, v.values);
  const DeviceTensor out(backend, {q.rows, q.cols}, std::vector<float>(q.values.size(), 3.0f));
  call.q = dq.view();
  call.k = dk.view();
  call.v = dv.view();
  call.pass = &pass;
  call.out = out.view();
  NormHeadsCall norm;
  if (call.norm != nullptr) {
    norm = *call.norm;
    norm.q = call.q;
    norm.k = call.k;
    call.norm = norm_apart ? nullptr : &norm;
    if (norm_apart) backend.NormHeads(norm);
  }
  backend.Attention(call);
  Matrix result(q.rows, q.cols);
  result.values = out.Read();
  return result;
}

}  // namespace stoch::test
