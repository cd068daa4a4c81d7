// SPDX-License-Identifier: Apache-2.0
// The CPU's copy of a PassLayout.
#pragma once

#include <vector>

#include "kernels/backend.h"

namespace stoch::cpu {

class CpuPass final : public Pass {
 public:
  // Errors: InvalidInput (CheckPassLimits).
  CpuPass(Device device, const PassLimits& limits);
  Device device() const override { return device_; }

  // Errors: InvalidInput (CheckPass).
  void Upload(const PassLayout& layout);
  const PassLayout& layout() const { return layout_; }

 private:
  Device device_;
  PassLimits limits_;
  PassLayout layout_;  // its page spans point into pages_
  std::vector<int32_t> pages_;
};

inline const PassLayout& LayoutOf(const Pass& pass) { return static_cast<const CpuPass&>(pass).layout(); }

}  // namespace stoch::cpu
