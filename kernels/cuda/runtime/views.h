// Checks of operands, before anything is launched.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "kernels/backend.h"

namespace stoch::cuda {

inline constexpr int64_t kAnySize = -1;

// "layer 3 q_proj", "embed".
std::string SiteName(const OpSite& site);

// Errors: InvalidInput "SITE: MESSAGE".
[[noreturn]] void Reject(const OpSite& site, const std::string& message);

// What: checks device, type, shape (kAnySize matches all) and dense rows of an operand called `name`.
void RequireView(const OpSite& site, std::string_view name, const TensorView& view, const Device& device, DType dtype,
                 std::initializer_list<int64_t> shape);

// What: checks that an output shares no byte with another operand, nor with itself (a stride of 0).
void RequireDisjoint(const OpSite& site, const TensorView& out, const TensorView& other);

}  // namespace stoch::cuda
