// SPDX-License-Identifier: Apache-2.0
#include "research/operand_capture.h"

#include "kernels/base/check.h"

namespace stoch {
namespace {

void Append(const float* x, int64_t rows, int64_t cols, int64_t stride, HostMatrix* to) {
  to->cols = cols;
  to->rows += rows;
  for (int64_t i = 0; i < rows; ++i) to->values.insert(to->values.end(), x + i * stride, x + i * stride + cols);
}

void Append(const TensorView& x, HostMatrix* to) { Append(x.ptr<const float>(), x.dim(0), x.dim(1), x.step(0), to); }

}  // namespace

void OperandCapture::OnLinear(const LinearCall& call, const float* x, int64_t rows, int64_t cols, int64_t stride) {
  const int layer = call.site.layer;
  if (layer < 0 && !(with_head_ && head_open_)) return;
  HostMatrix& to = operands_.inputs[{layer, std::string(call.site.op)}];
  // A block of logits may be made again before anybody reads one.
  if (layer < 0 && to.rows + rows > operands_.attention.begin()->second.q.rows) return;
  Append(x, rows, cols, stride, &to);
}

void OperandCapture::OnAttention(const AttentionCall& call, const PassLayout& layout) {
  head_open_ = true;
  AttentionOperands& to = operands_.attention[call.site.layer];
  STOCH_CHECK(layout.sequences.size() == 1 && layout.sequences[0].start_position == to.q.rows);
  Append(call.q, &to.q);
  Append(call.k, &to.k);
  Append(call.v, &to.v);
  to.window = call.window;
}

void OperandCapture::OnLengths(const ScLengthRecord& record) {
  if (lengths_ != nullptr) lengths_->OnLengths(record);
}

}  // namespace stoch
