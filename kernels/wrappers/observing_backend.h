// SPDX-License-Identifier: Apache-2.0
// A backend that shows the operands of another one's ops, copied to the host, where that one cannot show them itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/wrappers/forwarding_backend.h"

namespace stoch {

// While somebody observes, every Linear and Attention waits for its operands, and nothing is recorded or replayed:
// RunGraph runs its body. f(x) and the rotation are computed on the host, on up to `threads` threads. Lengths
// (OpObserver::OnLengths) are the inner backend's, through ObserveLengths.
// Bits: those of the inner backend; what is shown are the bits that the CPU backend shows.
class ObservingBackend final : public ForwardingBackend {
 public:
  ObservingBackend(std::shared_ptr<Backend> inner, int threads)
      : ForwardingBackend(std::move(inner)), threads_(threads) {}

  bool Observe(OpObserver* observer) override {
    observer_ = observer;
    return true;
  }
  bool is_observed() const override { return observer_ != nullptr || ForwardingBackend::is_observed(); }
  void UploadPass(Pass& pass, const PassLayout& layout) override;
  void Linear(const LinearCall& call) override;
  void ExpertLinear(const ExpertLinearCall& call) override;
  void Attention(const AttentionCall& call) override;
  void RunGraph(std::span<const Device> devices, std::string_view key, const std::function<void()>& body) override;

 private:
  // A layout with the pages that its spans refer to.
  struct KeptLayout {
    PassLayout layout;
    std::vector<std::vector<int32_t>> pages;
  };

  // F32 [rows, cols] with dense rows, without gaps. `to` keeps its memory from call to call.
  float* Read(const TensorView& matrix, std::vector<float>* to);
  // f(x) of a LinearCall or an ExpertLinearCall.
  template <typename Call>
  float* ReadInput(const Call& call);

  const int threads_;
  OpObserver* observer_ = nullptr;
  std::map<const Pass*, KeptLayout> layouts_;
  std::vector<float> x_, x2_, norm_weight_;
  std::vector<float> q_, k_, v_, rope_;
};

}  // namespace stoch
