// SPDX-License-Identifier: Apache-2.0
// A backend that tells which operator it begins and hands every call on to another one. Once the device is lost it tells
// no more: what is tried after that is not where it happened.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "kernels/base/device_fault.h"
#include "kernels/wrappers/forwarding_backend.h"

namespace stoch::serve {

// Bits: those of the inner backend.
class MarkingBackend final : public ForwardingBackend {
 public:
  using Mark = std::function<void(const OpSite& site)>;
  MarkingBackend(std::shared_ptr<Backend> inner, Mark mark)
      : ForwardingBackend(std::move(inner)), mark_(std::move(mark)) {}

#define OP(Op)                                  \
  void Op(const Op##Call& call) override {      \
    Tell(call.site, [&] { inner().Op(call); }); \
  }
  STOCH_FOR_EACH_OP(OP)
  OP(AllGather)
  OP(RingAttention)
#undef OP

  void Copy(const TensorView& to, const TensorView& from) override {
    Tell({-1, "copy"}, [&] { inner().Copy(to, from); });
  }
  void UploadPass(Pass& pass, const PassLayout& layout) override {
    Tell({-1, "upload"}, [&] { inner().UploadPass(pass, layout); });
  }
  void Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) override {
    Tell({-1, "embed"}, [&] { inner().Embed(table, pass, out); });
  }
  void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) override {
    Tell({-1, "select_rows"}, [&] { inner().SelectRows(pass, x, out); });
  }
  void Argmax(const TensorView& logits, const TensorView& ids) override {
    Tell({-1, "argmax"}, [&] { inner().Argmax(logits, ids); });
  }
  void PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override {
    Tell({-1, "pick_tokens"}, [&] { inner().PickTokens(logits, buffer, range); });
  }
  void LogProbs(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override {
    Tell({-1, "logprobs"}, [&] { inner().LogProbs(logits, buffer, range); });
  }
  void CheckFinite(Device device) override {
    Tell({-1, "wait"}, [&] { inner().CheckFinite(device); });
  }

 private:
  template <class Op>
  void Tell(const OpSite& site, const Op& op) {
    if (!is_lost_) mark_(site);
    try {
      op();
    } catch (const DeviceRefusal&) {
      throw;
    } catch (const DeviceError&) {
      is_lost_ = true;
      throw;
    }
  }

  const Mark mark_;
  bool is_lost_ = false;
};

}  // namespace stoch::serve
