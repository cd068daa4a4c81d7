// SPDX-License-Identifier: Apache-2.0
// How many threads of this process can run at a time: cores, and the time that Linux control groups give it.
#pragma once

#include <filesystem>

namespace stoch {

// CPUs that the tightest quota of this process's control group and its parents is worth, rounded down, at least 1: a
// spinning thread beyond it would have all of them throttled. 0 where there is no quota, and where it cannot be read.
// Reads:  `proc`/self/cgroup and `proc`/self/mountinfo, then cpu.max (version 2) or cpu.cfs_quota_us and
//         cpu.cfs_period_us (version 1) under the mount points named there, as seen below `root`.
// Source: kernel.org, admin-guide/cgroup-v2 "cpu.max"; scheduler/sched-bwc "Management".
int QuotaThreads(const std::filesystem::path& proc = "/proc", const std::filesystem::path& root = "/");

// Cores this process may run on, or as many as its control group gives it time of; at least 1.
int UsableThreads();

}  // namespace stoch
