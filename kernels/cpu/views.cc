#include "kernels/cpu/views.h"

namespace stoch::cpu {

void RequireStrided(std::string_view op, std::string_view name, const TensorView& view, Device device, DType dtype) {
  if (view.device != device) {
    Reject(op, std::string(name) + " is " + Describe(view) + ", expected on " + DeviceName(device));
  }
  if (view.dtype != dtype) {
    Reject(op, std::string(name) + " is " + Describe(view) + ", expected " + std::string(DTypeName(dtype)));
  }
  if (view.data == nullptr && view.numel() > 0) Reject(op, std::string(name) + " has no memory");
}

void RequireView(std::string_view op, std::string_view name, const TensorView& view, Device device, DType dtype,
                 std::initializer_list<int64_t> shape) {
  RequireStrided(op, name, view, device, dtype);
  bool same = view.rank == static_cast<int>(shape.size());
  int axis = 0;
  std::string expected;
  for (const int64_t size : shape) {
    if (!expected.empty()) expected += ", ";
    expected += size == kAnySize ? "any" : std::to_string(size);
    if (same && size != kAnySize && view.dim(axis) != size) same = false;
    ++axis;
  }
  if (!same) Reject(op, std::string(name) + " is " + Describe(view) + ", expected shape [" + expected + "]");
  if (!view.rows_dense()) Reject(op, std::string(name) + " must have dense rows");
}

void RequireDisjoint(std::string_view op, const TensorView& out, const TensorView& in) {
  for (int i = 0; i < out.rank; ++i) {
    if (out.dim(i) > 1 && out.step(i) == 0) Reject(op, "the output " + Describe(out) + " overlaps itself");
  }
  if (MayOverlap(out, in)) Reject(op, "the output " + Describe(out) + " overlaps " + Describe(in));
}

}  // namespace stoch::cpu
