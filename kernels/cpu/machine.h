// SPDX-License-Identifier: Apache-2.0
// What this machine is: name, memory, read bandwidth.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cpu/thread_pool.h"

namespace stoch::cpu {

struct MachineInfo {
  std::string cpu;  // model name
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // bytes that an allocation may take, droppable page caches included
};
MachineInfo ReadMachineInfo();

// Reads a buffer well beyond the last-level cache with every thread of the pool, a few times.
// Units: bytes per second, the best pass.
double MeasureReadBandwidth(ThreadPool& pool);

}  // namespace stoch::cpu
