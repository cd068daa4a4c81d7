// SPDX-License-Identifier: Apache-2.0
// A backend that tells which operator it begins and hands every call on to another one.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "kernels/forwarding_backend.h"

namespace stoch::serve {

// Bits: those of the inner backend.
class MarkingBackend final : public ForwardingBackend {
 public:
  using Mark = std::function<void(const OpSite& site)>;
  MarkingBackend(std::shared_ptr<Backend> inner, Mark mark)
      : ForwardingBackend(std::move(inner)), mark_(std::move(mark)) {}

#define OP(Op)                             \
  void Op(const Op##Call& call) override { \
    mark_(call.site);                      \
    inner().Op(call);                      \
  }
  STOCH_FOR_EACH_OP(OP)
  OP(AllGather)
  OP(RingAttention)
#undef OP

  void CheckFinite(Device device) override {
    mark_({-1, "wait"});
    inner().CheckFinite(device);
  }

 private:
  const Mark mark_;
};

}  // namespace stoch::serve
