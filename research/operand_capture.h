// SPDX-License-Identifier: Apache-2.0
// What the products of a forward pass multiply, kept on the host.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "kernels/backend.h"
#include "research/reference.h"

namespace stoch {

// Of one sequence: q [rows, heads * head_dim] and k [rows, KV heads * head_dim] rotated, v as k.
struct AttentionOperands {
  HostMatrix q, k, v;
  int64_t window = 0;  // AttentionCall::window
};

// Of one window: inputs of linears by layer (-1: the LM head) and name of the call, attention by layer.
struct WindowOperands {
  std::map<std::pair<int, std::string>, HostMatrix> inputs;
  std::map<int, AttentionOperands> attention;
};

// Collects the passes of one sequence from position 0 on, on one device.
class OperandCapture final : public OpObserver {
 public:
  // `lengths`, where given, is shown what OnLengths is.
  OperandCapture(bool with_head, OpObserver* lengths) : with_head_(with_head), lengths_(lengths) {}

  void OnLinear(const LinearCall& call, const float* x, int64_t rows, int64_t cols, int64_t stride) override;
  void OnAttention(const AttentionCall& call, const PassLayout& layout) override;
  void OnLengths(const ScLengthRecord& record) override;

  // Until the next pass the LM head only repeats what it did: logits are read.
  void OnLogitsRead() { head_open_ = false; }
  // What was collected; it begins again.
  WindowOperands Take() { return std::exchange(operands_, {}); }

 private:
  bool with_head_;
  bool head_open_ = true;
  OpObserver* lengths_;
  WindowOperands operands_;
};

}  // namespace stoch
