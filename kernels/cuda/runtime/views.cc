#include "kernels/cuda/runtime/views.h"

#include "kernels/base/error.h"

namespace stoch::cuda {

std::string SiteName(const OpSite& site) {
  return (site.layer >= 0 ? "layer " + std::to_string(site.layer) + " " : std::string()) + std::string(site.op);
}

void Reject(const OpSite& site, const std::string& message) { throw InvalidInput(SiteName(site) + ": " + message); }

void RequireView(const OpSite& site, std::string_view name, const TensorView& view, const Device& device, DType dtype,
                 std::initializer_list<int64_t> shape) {
  bool fits = view.dtype == dtype && view.device == device && view.rank == static_cast<int>(shape.size()) &&
              (view.data != nullptr || view.numel() == 0) && view.rows_dense();
  std::string expected(DTypeName(dtype));
  expected += '[';
  int axis = 0;
  for (const int64_t size : shape) {
    if (axis > 0) expected += ", ";
    expected += size == kAnySize ? "any" : std::to_string(size);
    if (fits && size != kAnySize) fits = view.dim(axis) == size;
    ++axis;
  }
  if (!fits) {
    Reject(site, std::string(name) + " is " + Describe(view) + ", expected " + expected + "] with dense rows on " +
                     DeviceName(device));
  }
}

void RequireDisjoint(const OpSite& site, const TensorView& out, const TensorView& other) {
  for (int i = 0; i < out.rank; ++i) {
    if (out.dim(i) > 1 && out.step(i) == 0) Reject(site, "the output " + Describe(out) + " overlaps itself");
  }
  if (MayOverlap(out, other)) {
    Reject(site, "the output " + Describe(out) + " overlaps the operand " + Describe(other));
  }
}

}  // namespace stoch::cuda
