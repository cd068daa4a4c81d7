// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/machine.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <vector>

#include "kernels/cpu/memory.h"

namespace stoch::cpu {

MachineInfo ReadMachineInfo() {
  MachineInfo info;
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);) {
    if (!line.starts_with("model name")) continue;
    info.cpu = line.substr(std::min(line.size(), line.find(':') + 2));
    break;
  }
  if (info.cpu.empty()) info.cpu = "CPU";
  std::ifstream memory("/proc/meminfo");
  std::string key;
  for (int64_t kib = 0; memory >> key >> kib;) {
    if (key == "MemTotal:") info.total_bytes = kib * 1024;
    if (key == "MemAvailable:") info.free_bytes = kib * 1024;
    memory.ignore(64, '\n');
  }
  return info;
}

double MeasureReadBandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  constexpr int64_t kSlice = int64_t{1} << 20;
  constexpr int64_t kAhead = 2048 / 8;
  constexpr int kPasses = 4;
  const Array<uint64_t> buffer = MakeArray<uint64_t>(kBytes / 8);
  const auto slice = [&](int64_t i) { return buffer.get() + i * (kSlice / 8); };
  // Pages that were never written all map to one page of zeros.
  pool.ParallelFor(kBytes / kSlice, [&](int64_t i, int) { std::fill(slice(i), slice(i) + kSlice / 8, 1u); });

  std::vector<uint64_t> sums(static_cast<size_t>(kBytes / kSlice));
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(kBytes / kSlice, [&](int64_t i, int) {
      const uint64_t* words = slice(i);
      uint64_t lanes[8] = {};
      for (int64_t j = 0; j < kSlice / 8; j += 8) {
        __builtin_prefetch(words + j + kAhead, 0, 2);  // into L2, as the kernels that are judged by this rate
        for (int64_t k = 0; k < 8; ++k) lanes[k] += words[j + k];
      }
      for (const uint64_t lane : lanes) sums[static_cast<size_t>(i)] += lane;  // keeps the loads alive
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kBytes) / elapsed.count());
  }
  return best;
}

}  // namespace stoch::cpu
