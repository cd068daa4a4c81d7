#include "kernels/cuda/views.h"

#include <algorithm>
#include <utility>

#include "kernels/base/error.h"

namespace stoch::cuda {
namespace {

// First and one-past-last byte that a view touches.
std::pair<const char*, const char*> Extent(const TensorView& view) {
  int64_t low = 0;
  int64_t high = 1;
  for (int i = 0; i < view.rank; ++i) {
    if (view.dim(i) == 0) return {nullptr, nullptr};
    const int64_t reach = (view.dim(i) - 1) * view.step(i);
    low += std::min<int64_t>(reach, 0);
    high += std::max<int64_t>(reach, 0);
  }
  const int64_t size = static_cast<int64_t>(DTypeSize(view.dtype));
  const char* data = static_cast<const char*>(view.data);
  return {data + low * size, data + high * size};
}

}  // namespace

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
  const auto [begin, end] = Extent(out);
  const auto [other_begin, other_end] = Extent(other);
  if (out.device == other.device && begin < other_end && other_begin < end) {
    Reject(site, "the output " + Describe(out) + " overlaps the operand " + Describe(other));
  }
}

}  // namespace stoch::cuda
