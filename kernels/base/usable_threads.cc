// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/usable_threads.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace stoch {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxThreads = 1 << 20;

// A hierarchy that limits CPU time: where it is mounted, which of its groups that is, and the group of this process.
struct Hierarchy {
  fs::path mount;
  std::string mounted_group;
  std::string group;
  bool version2 = false;
};

bool Listed(std::string_view options, std::string_view name) {
  for (size_t at = 0; at <= options.size();) {
    const size_t end = std::min(options.find(',', at), options.size());
    if (options.substr(at, end - at) == name) return true;
    at = end + 1;
  }
  return false;
}

// Groups of this process: "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1.
void ReadGroups(const fs::path& proc, std::string* version1, std::string* version2) {
  std::ifstream file(proc / "self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    if (first == std::string::npos) continue;
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    if (controllers.empty()) *version2 = line.substr(second + 1);
    if (Listed(controllers, "cpu")) *version1 = line.substr(second + 1);
  }
}

// Mounts of cgroup file systems: "36 35 0:31 /mounted/group /mount/point rw ... - cgroup2 cgroup2 rw,options".
std::vector<Hierarchy> ReadHierarchies(const fs::path& proc, const fs::path& root) {
  std::string version1, version2;
  ReadGroups(proc, &version1, &version2);
  std::vector<Hierarchy> hierarchies;
  std::ifstream file(proc / "self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t separator = line.find(" - ");
    if (separator == std::string::npos) continue;
    std::string id, parent, device, group, mount, type, source, options;
    std::istringstream(line.substr(0, separator)) >> id >> parent >> device >> group >> mount;
    std::istringstream(line.substr(separator + 3)) >> type >> source >> options;
    const bool is_version2 = type == "cgroup2";
    if (!is_version2 && (type != "cgroup" || !Listed(options, "cpu"))) continue;
    const std::string& own = is_version2 ? version2 : version1;
    if (!own.empty()) hierarchies.push_back({root / fs::path(mount).relative_path(), group, own, is_version2});
  }
  return hierarchies;
}

// CPUs of one group, 0 where it has no quota.
int64_t QuotaOf(const fs::path& folder, bool version2) {
  int64_t quota = 0;
  int64_t period = 0;
  if (version2) {
    std::ifstream(folder / "cpu.max") >> quota >> period;  // "max 100000": no number, no quota
  } else {
    std::ifstream(folder / "cpu.cfs_quota_us") >> quota;  // -1: no quota
    std::ifstream(folder / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return 0;
  return std::clamp<int64_t>(quota / period, 1, kMaxThreads);
}

}  // namespace

int QuotaThreads(const fs::path& proc, const fs::path& root) {
  int64_t tightest = 0;
  for (const Hierarchy& hierarchy : ReadHierarchies(proc, root)) {
    // The group as a path below the mount. A container may see its own group mounted, and its name from outside.
    std::string_view below = hierarchy.group;
    if (hierarchy.mounted_group != "/" && below.starts_with(hierarchy.mounted_group)) {
      below.remove_prefix(hierarchy.mounted_group.size());
    }
    for (fs::path group = fs::path(below).relative_path();; group = group.parent_path()) {
      const int64_t quota = QuotaOf(hierarchy.mount / group, hierarchy.version2);
      if (quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
      if (group.empty()) break;
    }
  }
  return static_cast<int>(tightest);
}

int UsableThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::thread::hardware_concurrency());
  const int quota = QuotaThreads();
  return std::max(1, quota > 0 ? std::min(cores, quota) : cores);
}

}  // namespace stoch
