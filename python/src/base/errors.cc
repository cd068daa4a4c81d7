// SPDX-License-Identifier: Apache-2.0
#include "python/src/base/errors.h"

#include <new>

#include "python/src/base/bind.h"

namespace nb = nanobind;

namespace stoch::python {

void BindErrors(nb::module_& m) {
  // The translator registered last is asked first.
  nb::exception<InvalidInput> invalid_input(m, "InvalidInput", PyExc_ValueError);
  nb::exception<NotFinite> not_finite(m, "NotFinite", invalid_input.ptr());
  nb::exception<DeviceError> device_error(m, "DeviceError", PyExc_RuntimeError);
  invalid_input.attr("__doc__") = "A value, shape, type, file or setting that cannot be used; nothing was done.";
  not_finite.attr("__doc__") = "An operand holds NaN or infinity.";
  device_error.attr("__doc__") = "A device failed while it was used.";
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const OutOfMemory& memory) {
      PyErr_SetString(PyExc_MemoryError, memory.what());
    } catch (const std::bad_alloc&) {
      PyErr_SetString(PyExc_MemoryError, "out of host memory");
    }
  });
}

}  // namespace stoch::python
