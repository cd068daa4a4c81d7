// SPDX-License-Identifier: Apache-2.0
// a @ b^T: on the fly, with a packed weight, and its integer sums.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "python/src/base/arrays.h"
#include "python/src/base/bind.h"
#include "python/src/base/devices.h"
#include "python/src/base/errors.h"
#include "python/src/base/stream_order.h"
#include "python/src/config.h"
#include "python/src/counts.h"
#include "python/src/packed.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

void RequireSameDevice(const Array& a, const Array& other, std::string_view name) {
  if (a.view().device == other.view().device) return;
  throw InvalidInput(std::string(name) + " is on " + PlaceName(other.view().device) + ", a on " +
                     PlaceName(a.view().device));
}

// The operand as the backend takes it: on its device, F32.
TensorView AsOperand(const Array& array, std::string_view name, const OpenDevice& open, std::vector<float>* storage) {
  TensorView view = array.view();
  if (view.dtype != DType::kF32) {
    if (!array.on_cpu()) throw InvalidInput(std::string(name) + " is not float32: convert it on its device");
    view = WidenHost(view, storage);
  }
  view.device = open.device;
  return view;
}

void Finish(OpenDevice& open, StreamOrder* order, bool wait) {
  order->End();
  if (wait || open.device.kind == DeviceKind::kCpu) CheckFinite(open);
}

void Product(nb::handle a, nb::handle b, const Config& config, nb::handle out, uintptr_t stream, bool check_finite) {
  RequireNotForked();
  const Array left = Array::Import(a, "a", false);
  const Array right = Array::Import(b, "b", false);
  const Array result = Array::Import(out, "out", true);
  RequireSameDevice(left, right, "b");
  RequireSameDevice(left, result, "out");
  const nb::gil_scoped_release release;
  OpenDevice& open = DeviceOf(left.view().device);
  const std::lock_guard lock(open.mutex);
  std::vector<float> wide_a, wide_b;
  const TensorView view_a = AsOperand(left, "a", open, &wide_a);
  const TensorView view_b = AsOperand(right, "b", open, &wide_b);
  TensorView view_out = result.view();
  view_out.device = open.device;
  const ScOperatorPtr op = config.op();
  StreamOrder order(open, stream);
  open.backend->ScMatmul(view_a, view_b, *op, view_out);
  Finish(open, &order, check_finite);
}

// Rows of the last axis, dense, as a linear takes them.
void PackedProduct(nb::handle a, const Packed& packed, nb::handle out, uintptr_t stream, bool check_finite) {
  RequireNotForked();
  const Array left = Array::Import(a, "a", false);
  const Array result = Array::Import(out, "out", true);
  const Device place = packed.open().device;
  if (left.view().device.kind != place.kind || (!left.on_cpu() && !(left.view().device == place))) {
    throw InvalidInput("b is packed on " + PlaceName(place) + ", a is on " + PlaceName(left.view().device));
  }
  RequireSameDevice(left, result, "out");
  const nb::gil_scoped_release release;
  OpenDevice& open = packed.open();
  const std::lock_guard lock(open.mutex);
  std::vector<float> wide;
  TensorView x = AsOperand(left, "a", open, &wide);
  TensorView y = result.view();
  y.device = open.device;
  if (x.rank != 2 || y.rank != 2) throw InvalidInput("a has 3 dimensions: a packed b takes 2");
  if (x.dim(1) != packed.weight().cols()) {
    throw InvalidInput("a has " + std::to_string(x.dim(1)) + " columns, the packed b has " +
                       std::to_string(packed.weight().cols()));
  }
  if (x.dim(0) == 0) return;
  if (!x.rows_dense()) {
    if (!left.on_cpu()) throw InvalidInput("a has rows that are not dense: pass a contiguous copy");
    x = WidenHost(left.view(), &wide);
    x.device = open.device;
  }
  LinearCall call;
  call.site = {-1, "sc_matmul"};
  call.x = x;
  call.weights = {&packed.weight()};
  call.outs = {y};
  StreamOrder order(open, stream);
  open.backend->Linear(call);
  Finish(open, &order, check_finite);
}

std::unique_ptr<Packed> Pack(nb::handle b, const Config& config, int cuda, uintptr_t stream) {
  return MakePacked(b, {Precision::kSc, config.op()}, config.config(), cuda, stream);
}

void CountsOf(nb::handle a, nb::handle b, const Config& config, nb::handle out) {
  RequireNotForked();
  const Array left = Array::Import(a, "a", false);
  const Array right = Array::Import(b, "b", false);
  Py_buffer buffer{};
  if (PyObject_GetBuffer(out.ptr(), &buffer, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0) throw nb::python_error();
  const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> owner(&buffer, &PyBuffer_Release);
  const nb::gil_scoped_release release;
  std::vector<float> wide_a, wide_b;
  const TensorView view_a = WidenHost(left.view(), &wide_a);
  const TensorView view_b = WidenHost(right.view(), &wide_b);
  OpenDevice& open = DeviceOf({DeviceKind::kCpu, 0});
  const std::lock_guard lock(open.mutex);
  SumCounts(*open.backend, view_a, view_b, *config.op(),
            std::span(static_cast<int32_t*>(buffer.buf), static_cast<size_t>(buffer.len) / sizeof(int32_t)));
}

// Waits for every device, and says what they met.
void Synchronize() {
  RequireNotForked();
  const nb::gil_scoped_release release;
  for (OpenDevice* open : OpenDevices()) {
    const std::lock_guard lock(open->mutex);
    open->backend->Synchronize(open->device);
    CheckFinite(*open);
  }
}

}  // namespace

void BindProducts(nb::module_& m) {
  nb::class_<Packed>(m, "Packed", "A weight prepared for one configuration on one device.")
      .def_prop_ro("shape", [](const Packed& self) { return std::pair(self.weight().rows(), self.weight().cols()); })
      .def_prop_ro("nbytes", [](const Packed& self) { return self.weight().bytes(); })
      .def_prop_ro("device", [](const Packed& self) { return PlaceName(self.open().device); })
      .def_prop_ro("describe", [](const Packed& self) { return Describe(self.config()); });
  m.def("product", &Product, nb::arg("a"), nb::arg("b"), nb::arg("config"), nb::arg("out"), nb::arg("stream"),
        nb::arg("check_finite"));
  m.def("packed_product", &PackedProduct, nb::arg("a"), nb::arg("packed"), nb::arg("out"), nb::arg("stream"),
        nb::arg("check_finite"));
  m.def("pack", &Pack, nb::arg("b"), nb::arg("config"), nb::arg("cuda"), nb::arg("stream"));
  m.def("counts", &CountsOf, nb::arg("a"), nb::arg("b"), nb::arg("config"), nb::arg("out"));
  m.def("synchronize", &Synchronize);
  m.def("current_stream", &CurrentStream, nb::arg("array"), nb::arg("ordinal"),
        "The stream that the array's library works on now on a CUDA device; None where it has to be asked in Python.");
}

}  // namespace stoch::python
