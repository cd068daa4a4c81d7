// SPDX-License-Identifier: Apache-2.0
// How much CPU time Linux control groups give this process.
#pragma once

#include <filesystem>

namespace stoch::cpu {

// CPUs that the tightest quota of this process's control group and its parents is worth, rounded down, at least 1: a
// spinning thread beyond it would have all of them throttled. 0 where there is no quota, and where it cannot be read.
// Reads:  `proc`/self/cgroup and `proc`/self/mountinfo, then cpu.max (version 2) or cpu.cfs_quota_us and
//         cpu.cfs_period_us (version 1) under the mount points named there, as seen below `root`.
// Source: kernel.org, admin-guide/cgroup-v2 "cpu.max"; scheduler/sched-bwc "Management".
int QuotaThreads(const std::filesystem::path& proc = "/proc", const std::filesystem::path& root = "/");

}  // namespace stoch::cpu
