// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>

#include "kernels/registry.h"

namespace stoch {

// The first GPU's backend, opened once; null where there is none.
inline Backend* Gpu() {
  static const std::unique_ptr<Backend> backend = [] {
    try {
      return OpenBackend("cuda:0", {}, nullptr);
    } catch (const std::exception&) {
      return std::unique_ptr<Backend>();
    }
  }();
  return backend.get();
}

}  // namespace stoch
