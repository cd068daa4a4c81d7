// SPDX-License-Identifier: Apache-2.0
// The name of one device of a backend.
#pragma once

#include <cstdint>
#include <string>

namespace stoch {

enum class DeviceKind : uint8_t { kCpu, kCuda };

// index counts the devices a backend was opened with (cpu:4 has kCpu 0..3; cuda:2,3 has kCuda ordinals 2 and 3).
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  // Not defaulted: nvcc with GCC 13 loses the definition.
  friend constexpr bool operator==(const Device& a, const Device& b) { return a.kind == b.kind && a.index == b.index; }
};

inline std::string DeviceName(const Device& device) {
  return (device.kind == DeviceKind::kCpu ? "cpu:" : "cuda:") + std::to_string(device.index);
}

}  // namespace stoch
