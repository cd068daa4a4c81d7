// SPDX-License-Identifier: Apache-2.0
#include "python/src/base/devices.h"

#include <pthread.h>

#include <atomic>
#include <map>
#include <string>
#include <utility>

#include "kernels/registry.h"
#include "python/src/base/errors.h"

namespace stoch::python {
namespace {

std::atomic<bool> g_forked{false};

// Never destroyed: a driver may be gone before the last static of a process.
struct Table {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::unique_ptr<OpenDevice>> devices;
};

Table& TheTable() {
  static auto* const table = new Table;
  return *table;
}

}  // namespace

void WatchForFork() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); });
  (void)registered;
}

bool WasForked() { return g_forked.load(); }

void RequireNotForked() {
  if (WasForked()) throw UsedBeforeFork();
}

OpenDevice& DeviceOf(Device device) {
  RequireNotForked();
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  std::unique_ptr<OpenDevice>& entry = table.devices[{static_cast<int>(device.kind), device.index}];
  if (entry == nullptr) {
    const bool cpu = device.kind == DeviceKind::kCpu;
    auto open = std::make_unique<OpenDevice>();
    open->backend = OpenBackend(cpu ? "cpu" : DeviceName(device), {}, nullptr);
    open->device = open->backend->devices().front();
    WatchForFork();
    entry = std::move(open);
  }
  return *entry;
}

std::vector<OpenDevice*> OpenDevices() {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  std::vector<OpenDevice*> open;
  for (const auto& [key, entry] : table.devices) {
    if (entry != nullptr) open.push_back(entry.get());
  }
  return open;
}

void CheckFinite(OpenDevice& open) {
  try {
    open.backend->CheckFinite(open.device);
  } catch (const InvalidInput& error) {
    throw NotFinite(error.what());
  }
}

}  // namespace stoch::python
