// SPDX-License-Identifier: Apache-2.0
#include "python/src/base/arrays.h"

#include <nanobind/stl/string.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "kernels/math/half.h"
#include "python/src/base/dlpack.h"
#include "python/src/base/errors.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

constexpr const char* kAllowed = "allowed is float32, float16, bfloat16";

[[noreturn]] void Reject(std::string_view name, const std::string& problem) {
  throw InvalidInput(std::string(name) + problem);
}

std::string TextOf(const nb::object& object) { return nb::cast<std::string>(nb::str(nb::handle(object))); }

// What an object calls its element type: "float64".
std::string TypeNameOf(nb::handle object, const std::string& otherwise) {
  if (!nb::hasattr(object, "dtype")) return otherwise;
  std::string name = TextOf(object.attr("dtype"));
  const size_t dot = name.rfind('.');  // "torch.float64"
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

void CheckShape(std::string_view name, const TensorView& view) {
  if (view.rank != 2 && view.rank != 3) {
    Reject(name, " has " + std::to_string(view.rank) + " dimensions: allowed is 2 or 3");
  }
  if (view.numel() > 0 && reinterpret_cast<uintptr_t>(view.data) % DTypeSize(view.dtype) != 0) {
    Reject(name, " is not aligned to its elements: pass a copy");
  }
}

// ---------------------------------------------------------------------------------------- the buffer protocol ----

struct BufferOwner {
  Py_buffer buffer{};
  ~BufferOwner() {
    const nb::gil_scoped_acquire gil;
    PyBuffer_Release(&buffer);
  }
};

std::optional<DType> TypeOfFormat(std::string_view format, bool bfloat16) {
  if (!format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<')) format.remove_prefix(1);
  if (bfloat16) return DType::kBF16;
  if (format == "f") return DType::kF32;
  if (format == "e") return DType::kF16;
  return std::nullopt;
}

// numpy's bfloat16 (of ml_dtypes) has no letter in the buffer protocol; its bits have.
nb::object BitsOfBfloat16(nb::handle object) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object.attr("dtype"), "name")) return {};
  if (TextOf(object.attr("dtype").attr("name")) != "bfloat16") return {};
  return object.attr("view")("uint16");
}

// ---------------------------------------------------------------------------------------------------- DLPack ----

std::optional<DType> TypeOfDlpack(const DlType& type) {
  if (type.lanes != 1) return std::nullopt;
  if (type.code == kDlFloat && type.bits == 32) return DType::kF32;
  if (type.code == kDlFloat && type.bits == 16) return DType::kF16;
  if (type.code == kDlBfloat && type.bits == 16) return DType::kBF16;
  return std::nullopt;
}

std::string NameOfDlpack(const DlType& type) {
  const std::string bits = std::to_string(type.bits);
  switch (type.code) {
    case kDlInt: return "int" + bits;
    case kDlUint: return "uint" + bits;
    case kDlFloat: return "float" + bits;
    case kDlComplex: return "complex" + bits;
    case kDlBool: return "bool";
    default: return "DLPack type " + std::to_string(type.code) + " of " + bits + " bits";
  }
}

// Takes a capsule's tensor over; the owner gives it back.
template <typename Managed>
std::shared_ptr<void> Take(Managed* managed) {
  return {static_cast<void*>(managed), [](void* pointer) {
            const nb::gil_scoped_acquire gil;
            auto* taken = static_cast<Managed*>(pointer);
            if (taken->deleter != nullptr) taken->deleter(taken);
          }};
}

Device DeviceOfDlpack(std::string_view name, const DlDevice& device) {
  if (device.type == kDlCpu || device.type == kDlCudaHost) return {DeviceKind::kCpu, 0};
  if (device.type == kDlCuda || device.type == kDlCudaManaged) return {DeviceKind::kCuda, device.index};
  Reject(name, " is on a device of DLPack type " + std::to_string(device.type) + ": allowed is cpu or cuda");
}

// A view of torch whose numbers are the negatives of what lies in memory, which DLPack does not say.
void RequireNotNegated(nb::handle object, std::string_view name) {
  const nb::object negated = nb::getattr(object, "is_neg", nb::none());
  if (!negated.is_none() && negated().is(nb::handle(Py_True))) Reject(name, " is a negated view: pass resolve_neg()");
}

// The functions by which the library of an object exports it; nullptr where its type has none of its own. A type that is
// derived from such a one may be something else inside.
const DlExchange* ExchangeOf(nb::handle object) {
  constexpr const char* kName = "__dlpack_c_exchange_api__";
  const nb::handle type = object.type();
  if (!nb::hasattr(type, "__dict__") || PyMapping_HasKeyString(type.attr("__dict__").ptr(), kName) == 0) return nullptr;
  const nb::object capsule = type.attr(kName);
  if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api") == 0) return nullptr;
  auto* exchange = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (exchange != nullptr && exchange->major != 1) exchange = exchange->previous;
  return exchange != nullptr && exchange->export_managed != nullptr ? exchange : nullptr;
}

// Torch says in a tenth of the time that a tensor is on the host.
DlDevice DeviceOfExporter(nb::handle object, std::string_view name) {
  if (nb::getattr(object, "is_cpu", nb::none()).is(nb::handle(Py_True))) return {kDlCpu, 0};
  try {
    const auto place = nb::cast<nb::tuple>(object.attr("__dlpack_device__")());
    return {nb::cast<int>(nb::int_(place[0])), nb::cast<int>(nb::int_(place[1]))};
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ValueError)) throw;
    Reject(name, ": " + TextOf(nb::borrow(error.value())));
  }
}

// cupy's arrays have the buffer protocol too, and refuse it where they are on a GPU. numpy's are not asked.
bool IsOnCuda(nb::handle object) {
  if (PyMemoryView_Check(object.ptr()) || !nb::hasattr(object, "__cuda_array_interface__")) return false;
  const auto place = nb::cast<nb::tuple>(object.attr("__dlpack_device__")());
  return nb::cast<int>(nb::int_(place[0])) == kDlCuda || nb::cast<int>(nb::int_(place[0])) == kDlCudaManaged;
}

// What Python's __dlpack__ of torch refuses, and its function does not.
void RequireExportable(nb::handle object, std::string_view name) {
  RequireNotNegated(object, name);
  if (nb::getattr(object, "requires_grad", nb::none()).is(nb::handle(Py_True))) {
    Reject(name, " requires a gradient: pass detach()");
  }
}

// Throws what an exporter raised: as InvalidInput where it says that it cannot.
[[noreturn]] void RejectRaised(const nb::python_error& error, std::string_view name) {
  if (!error.matches(PyExc_BufferError) && !error.matches(PyExc_RuntimeError)) throw nb::python_error(error);
  Reject(name, ": " + TextOf(nb::borrow(error.value())));
}

nb::object ExportDlpack(nb::handle object, std::string_view name, const DlDevice& device) {
  try {
    const bool cuda = device.type == kDlCuda || device.type == kDlCudaManaged;
    return cuda ? object.attr("__dlpack__")(nb::arg("stream") = -1) : object.attr("__dlpack__")();
  } catch (nb::python_error& error) {
    RejectRaised(error, name);
  }
}

}  // namespace

std::optional<uintptr_t> CurrentStream(nb::handle object, int ordinal) {
  const DlExchange* exchange = ExchangeOf(object);
  if (exchange == nullptr || exchange->current_stream == nullptr) return std::nullopt;
  void* stream = nullptr;
  if (exchange->current_stream(kDlCuda, ordinal, &stream) != 0) throw nb::python_error();
  return reinterpret_cast<uintptr_t>(stream);
}

std::string PlaceName(const Device& device) { return device.kind == DeviceKind::kCpu ? "cpu" : DeviceName(device); }

namespace {

TensorView ViewOfBuffer(const Py_buffer& buffer, DType dtype, std::string_view name) {
  TensorView view{buffer.buf, dtype, {DeviceKind::kCpu, 0}, buffer.ndim, {}, {}};
  if (buffer.ndim > TensorView::kMaxRank) {
    Reject(name, " has " + std::to_string(buffer.ndim) + " dimensions: allowed is 2 or 3");
  }
  for (int i = 0; i < buffer.ndim; ++i) {
    const auto axis = static_cast<size_t>(i);
    if (buffer.strides[i] % buffer.itemsize != 0 && buffer.shape[i] > 1) {
      Reject(name, " has a stride of " + std::to_string(buffer.strides[i]) +
                       " bytes, no multiple of its elements: " + "pass a copy");
    }
    view.shape[axis] = buffer.shape[i];
    view.stride[axis] = buffer.strides[i] / buffer.itemsize;
  }
  return view;
}

}  // namespace

Array Array::Import(nb::handle object, std::string_view name, bool writable) {
  if (PyObject_CheckBuffer(object.ptr()) != 0 && !IsOnCuda(object)) return OfBuffer(object, name, writable);
  // Owned here until OfTensor has it.
  std::shared_ptr<void> owner;
  if (const DlExchange* exchange = ExchangeOf(object); exchange != nullptr) {
    RequireExportable(object, name);
    DlManagedVersioned* managed = nullptr;
    if (exchange->export_managed(object.ptr(), &managed) != 0 || managed == nullptr) {
      RejectRaised(nb::python_error(), name);
    }
    owner = Take(managed);
    return OfTensor(object, name, writable, managed->tensor, (managed->flags & kDlReadOnly) != 0, std::move(owner));
  }
  if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(object, "__dlpack_device__")) {
    Reject(name, " is a " + TextOf(object.type().attr("__name__")) +
                     ": allowed is an array with the buffer protocol or __dlpack__");
  }
  RequireNotNegated(object, name);
  const DlDevice device = DeviceOfExporter(object, name);
  const Device where = DeviceOfDlpack(name, device);
  const nb::object capsule = ExportDlpack(object, name, device);
  const DlTensor* tensor = nullptr;
  bool read_only = false;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor") != 0) {
    auto* managed = static_cast<DlManaged*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    owner = Take(managed);
    tensor = &managed->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    auto* managed = static_cast<DlManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->major != 1) Reject(name, ": its DLPack version is " + std::to_string(managed->major));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    owner = Take(managed);
    tensor = &managed->tensor;
    read_only = (managed->flags & kDlReadOnly) != 0;
  } else {
    Reject(name, ": __dlpack__ gave no tensor");
  }
  if (DeviceOfDlpack(name, tensor->device) != where) Reject(name, ": its tensor is on another device than it says");
  return OfTensor(object, name, writable, *tensor, read_only, std::move(owner));
}

Array Array::OfBuffer(nb::handle object, std::string_view name, bool writable) {
  Array array;
  const nb::object bits = BitsOfBfloat16(object);
  auto owner = std::make_shared<BufferOwner>();
  const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(bits.is_valid() ? bits.ptr() : object.ptr(), &owner->buffer, flags) != 0) {
    nb::python_error error;
    owner->buffer = {};
    Reject(name, ": " + TextOf(nb::borrow(error.value())));
  }
  const std::string_view format = owner->buffer.format == nullptr ? "B" : owner->buffer.format;
  const std::optional<DType> dtype = TypeOfFormat(format, bits.is_valid());
  if (!dtype || (writable && dtype != DType::kF32)) {
    Reject(name, " is " + TypeNameOf(object, "of format '" + std::string(format) + "'") + ": " +
                     (writable ? "allowed is float32" : kAllowed));
  }
  array.view_ = ViewOfBuffer(owner->buffer, *dtype, name);
  array.owner_ = std::move(owner);
  CheckShape(name, array.view_);
  return array;
}

Array Array::OfTensor(nb::handle object, std::string_view name, bool writable, const DlTensor& tensor, bool read_only,
                      std::shared_ptr<void> owner) {
  Array array;
  array.owner_ = std::move(owner);
  const std::optional<DType> dtype = TypeOfDlpack(tensor.dtype);
  if (!dtype || (writable && dtype != DType::kF32)) {
    Reject(name, " is " + TypeNameOf(object, NameOfDlpack(tensor.dtype)) + ": " +
                     (writable ? "allowed is float32" : kAllowed));
  }
  if (writable && read_only) Reject(name, " is read-only");
  if (tensor.ndim < 0 || tensor.ndim > TensorView::kMaxRank) {
    Reject(name, " has " + std::to_string(tensor.ndim) + " dimensions: allowed is 2 or 3");
  }
  TensorView& view = array.view_;
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.dtype = *dtype;
  view.device = DeviceOfDlpack(name, tensor.device);
  view.rank = tensor.ndim;
  int64_t dense = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    const auto axis = static_cast<size_t>(i);
    view.shape[axis] = tensor.shape[i];
    view.stride[axis] = tensor.strides == nullptr ? dense : tensor.strides[i];
    dense *= tensor.shape[i];
  }
  CheckShape(name, view);
  return array;
}

TensorView WidenHost(const TensorView& view, std::vector<float>* storage) {
  bool dense = true;
  int64_t expected = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    dense = dense && (view.dim(i) <= 1 || view.step(i) == expected);
    expected *= view.dim(i);
  }
  if (dense && view.dtype == DType::kF32) return view;
  storage->resize(static_cast<size_t>(view.numel()));
  const bool batched = view.rank == 3;
  const int64_t batch = batched ? view.dim(0) : 1;
  const int64_t rows = view.dim(view.rank - 2);
  const int64_t cols = view.dim(view.rank - 1);
  float* to = storage->data();
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t first = (batched ? b * view.step(0) : 0) + r * view.step(view.rank - 2);
      const int64_t step = view.step(view.rank - 1);
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t at = first + c * step;
        switch (view.dtype) {
          case DType::kF16: *to++ = F16ToFloat(view.ptr<const uint16_t>()[at]); break;
          case DType::kBF16: *to++ = Bf16ToFloat(view.ptr<const uint16_t>()[at]); break;
          default: *to++ = view.ptr<const float>()[at]; break;
        }
      }
    }
  }
  return batched ? MakeView(storage->data(), DType::kF32, view.device, batch, rows, cols)
                 : MakeView(storage->data(), DType::kF32, view.device, rows, cols);
}

}  // namespace stoch::python
