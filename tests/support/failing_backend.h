// SPDX-License-Identifier: Apache-2.0
// A backend that hands every call on to another one, and fails where a test wants it to.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "kernels/wrappers/forwarding_backend.h"

namespace stoch::test {

class FailingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // Called before every attention, with its rows; what it throws is what the op throws.
  std::function<void(int64_t rows)> before_attention;
  // Called after every choice of experts.
  std::function<void(const RouteCall& call)> after_route;
  // Called after every linear.
  std::function<void(const LinearCall& call)> after_linear;
  // Called before every pass, with its tokens; the same.
  std::function<void(const PassLayout& layout)> before_pass;

  void UploadPass(Pass& pass, const PassLayout& layout) override {
    if (before_pass) before_pass(layout);
    inner().UploadPass(pass, layout);
  }
  void Attention(const AttentionCall& call) override {
    if (before_attention) before_attention(call.q.dim(0));
    inner().Attention(call);
  }
  void Linear(const LinearCall& call) override {
    inner().Linear(call);
    if (after_linear) after_linear(call);
  }
  void Route(const RouteCall& call) override {
    inner().Route(call);
    if (after_route) after_route(call);
  }
};

}  // namespace stoch::test
