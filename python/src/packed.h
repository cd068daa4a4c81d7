// SPDX-License-Identifier: Apache-2.0
// A matrix prepared once, for the linears of one specification.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/backend.h"
#include "python/src/base/devices.h"

namespace stoch::python {

class Packed {
 public:
  Packed(OpenDevice& open, std::unique_ptr<LinearWeight> weight, ScConfig config)
      : open_(open), weight_(std::move(weight)), config_(std::move(config)) {}
  ~Packed() {
    // A child process cannot free what its parent's driver or threads made.
    if (WasForked()) (void)weight_.release();
  }
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;

  OpenDevice& open() const { return open_; }
  const LinearWeight& weight() const { return *weight_; }
  const ScConfig& config() const { return config_; }

 private:
  OpenDevice& open_;
  std::unique_ptr<LinearWeight> weight_;
  ScConfig config_;
};

// `b` is not referred to afterwards; the packed weight lives on `cuda` (an ordinal) or the CPU (-1). b is on the host, or
// on that device and is then read where it lies, after what the caller's `stream` holds.
// Requires: the GIL is held; spec.precision is kSc; on CUDA b is dense and finite.
// Errors: InvalidInput for shapes, types and what the device has no kernel for; NotFinite.
std::unique_ptr<Packed> MakePacked(nanobind::handle b, const LinearSpec& spec, const ScConfig& config, int cuda,
                                   uintptr_t stream);

}  // namespace stoch::python
