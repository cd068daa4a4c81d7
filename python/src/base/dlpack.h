// SPDX-License-Identifier: Apache-2.0
// The structures of the DLPack protocol, as far as they are read here.
// Source: https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace stoch::python {

struct DlDevice {
  int32_t type;
  int32_t index;
};
inline constexpr int32_t kDlCpu = 1;
inline constexpr int32_t kDlCuda = 2;
inline constexpr int32_t kDlCudaHost = 3;
inline constexpr int32_t kDlCudaManaged = 13;

struct DlType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
inline constexpr uint8_t kDlInt = 0;
inline constexpr uint8_t kDlUint = 1;
inline constexpr uint8_t kDlFloat = 2;
inline constexpr uint8_t kDlBfloat = 4;
inline constexpr uint8_t kDlComplex = 5;
inline constexpr uint8_t kDlBool = 6;

struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; nullptr: dense
  uint64_t byte_offset;
};

// What a capsule "dltensor" holds.
struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};

// What a capsule "dltensor_versioned" holds.
struct DlManagedVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(DlManagedVersioned*);
  uint64_t flags;
  DlTensor tensor;
};
inline constexpr uint64_t kDlReadOnly = 1;

// What the capsule "dlpack_exchange_api" of a type holds, its attribute __dlpack_c_exchange_api__ (DLPack 1.3): functions
// of the library that export an object without a call of Python. They return 0, or -1 with an error of Python.
struct DlExchange {
  uint32_t major, minor;
  DlExchange* previous;
  int (*allocate)(DlTensor*, DlManagedVersioned**, void*, void (*)(void*, const char*, const char*));
  int (*export_managed)(void* object, DlManagedVersioned** out);  // orders nothing
  int (*import_managed)(DlManagedVersioned*, void** object);
  int (*export_view)(void* object, DlTensor* out);
  int (*current_stream)(int32_t device_type, int32_t device_index, void** out);
};

}  // namespace stoch::python
