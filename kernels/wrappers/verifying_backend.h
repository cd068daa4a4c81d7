// SPDX-License-Identifier: Apache-2.0
// A backend that compares what devices sent each other with what arrived, bit by bit, on the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/wrappers/forwarding_backend.h"

namespace stoch {

// AllGathers, and Copies between two devices. Nothing is recorded or replayed: RunGraph runs its body.
// Errors: besides those of the inner backend, DeviceError naming the op, both devices and the first wrong value.
// Bits:   those of the inner backend.
class VerifyingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void Copy(const TensorView& to, const TensorView& from) override;
  void AllGather(const AllGatherCall& call) override;
  void RunGraph(std::span<const Device> devices, std::string_view key, const std::function<void()>& body) override;

 private:
  // Requires F32 [rows, cols] with dense rows, without gaps.
  std::vector<uint32_t> Read(const TensorView& matrix);
};

}  // namespace stoch
