// SPDX-License-Identifier: Apache-2.0
#include "python/src/packed.h"

#include <cmath>
#include <mutex>
#include <span>
#include <vector>

#include "python/src/base/arrays.h"
#include "python/src/base/errors.h"
#include "python/src/base/stream_order.h"

namespace nb = nanobind;

namespace stoch::python {

std::unique_ptr<Packed> MakePacked(nb::handle b, const LinearSpec& spec, const ScConfig& config, int cuda,
                                   uintptr_t stream) {
  RequireNotForked();
  const Array array = Array::Import(b, "b", false);
  if (!array.on_cpu() && !(array.view().device == Device{DeviceKind::kCuda, cuda})) {
    throw InvalidInput("b is on " + PlaceName(array.view().device) + ": packing reads the host, or its own device");
  }
  if (array.view().rank != 2) throw InvalidInput("b has 3 dimensions: a packed b has 2");
  const nb::gil_scoped_release release;
  std::vector<float> storage;
  const TensorView view = array.on_cpu() ? WidenHost(array.view(), &storage) : array.view();
  if (view.numel() == 0) throw InvalidInput("b is empty: a packed b has at least one row and one column");
  if (!view.is_dense()) throw InvalidInput("b is not dense: pass a contiguous copy");
  const auto elements = static_cast<size_t>(array.on_cpu() ? view.numel() : 0);
  for (const float value : std::span(view.ptr<const float>(), elements)) {
    if (!std::isfinite(value)) throw NotFinite("sc_matmul: NaN or infinity in b");
  }
  OpenDevice& open = DeviceOf(cuda < 0 ? Device{DeviceKind::kCpu, 0} : Device{DeviceKind::kCuda, cuda});
  const std::lock_guard lock(open.mutex);
  WeightSource source;
  source.name = "b";
  source.rows = view.dim(0);
  source.cols = view.dim(1);
  source.host = view.data;
  source.dtype = view.dtype;
  StreamOrder order(open, stream);
  std::unique_ptr<LinearWeight> weight = open.backend->MakeLinear(open.device, {&source, 1}, spec);
  order.End();
  open.backend->Synchronize(open.device);  // the memory is the caller's
  return std::make_unique<Packed>(open, std::move(weight), config);
}

}  // namespace stoch::python
