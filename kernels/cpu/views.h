// Checks of op operands: every op rejects what it cannot use before it does any work.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/tensor_view.h"

namespace stoch::cpu {

inline constexpr int64_t kAnySize = -1;

// What:   `view` is on `device`, of `dtype`, of this shape (kAnySize: any), and rows are dense.
// Errors: InvalidInput "op: name is ..., expected ...".
void RequireView(std::string_view op, std::string_view name, const TensorView& view, Device device, DType dtype,
                 std::initializer_list<int64_t> shape);

// What: as above for an op that takes any strides.
void RequireStrided(std::string_view op, std::string_view name, const TensorView& view, Device device, DType dtype);

// What: InvalidInput if the output's memory overlaps the input's, or itself (a stride of 0).
void RequireDisjoint(std::string_view op, const TensorView& out, const TensorView& in);

[[noreturn]] inline void Reject(std::string_view op, const std::string& problem) {
  throw InvalidInput(std::string(op) + ": " + problem);
}

}  // namespace stoch::cpu
