// SPDX-License-Identifier: Apache-2.0
// A backend that waits for its devices after every op, so that a failure is that of the op that it names, always or for
// as long as it is asked to.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/wrappers/forwarding_backend.h"

namespace stoch {

// While it blocks nothing is recorded or replayed: RunGraph runs its body. While it does not it hands every call on.
// Errors: those of the inner backend; while it blocks with the layer and operator of the op in front.
// Bits:   those of the inner backend.
class BlockingBackend final : public ForwardingBackend {
 public:
  explicit BlockingBackend(std::shared_ptr<Backend> inner, bool blocks = true)
      : ForwardingBackend(std::move(inner)), blocks_(blocks) {}

  void set_blocks(bool blocks) { blocks_ = blocks; }

  void Copy(const TensorView& to, const TensorView& from) override;
  void UploadPass(Pass& pass, const PassLayout& layout) override;
  void Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) override;
#define OP(Op) void Op(const Op##Call& call) override;
  STOCH_FOR_EACH_OP(OP)
#undef OP
  void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) override;
  void AllGather(const AllGatherCall& call) override;
  void Argmax(const TensorView& logits, const TensorView& ids) override;
  void UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries) override;
  void PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override;
  void LogProbs(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override;
  void RunGraph(std::span<const Device> devices, std::string_view key, const std::function<void()>& body) override;

 private:
  template <class Op>
  void Wait(const OpSite& site, const Op& op);

  bool blocks_;
};

}  // namespace stoch
