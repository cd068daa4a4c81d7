// SPDX-License-Identifier: Apache-2.0
// A backend that waits for its devices after every op, so that a failure is that of the op that it names.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/forwarding_backend.h"

namespace stoch {

// Nothing is recorded or replayed: RunGraph runs its body.
// Errors: those of the inner backend, with the layer and operator of the op in front.
// Bits:   those of the inner backend.
class BlockingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

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
  void Wait(const OpSite& site, const std::function<void()>& op);
};

}  // namespace stoch
