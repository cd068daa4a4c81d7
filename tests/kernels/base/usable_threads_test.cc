// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/usable_threads.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace stoch {
namespace {

// A machine's /proc and /sys below a folder.
class CpuQuota : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = dir_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void MountVersion2() {
    Write("proc/self/mountinfo",
          "25 30 0:23 / /sys rw - sysfs sysfs rw\n36 25 0:31 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  }
  void MountVersion1(const std::string& mounted_group) {
    Write("proc/self/mountinfo", "40 25 0:35 " + mounted_group +
                                     " /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
                                     "41 25 0:36 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
  }
  int Threads() { return QuotaThreads(dir_.path() / "proc", dir_.path()); }

  test::TempDir dir_;
};

TEST_F(CpuQuota, NothingToReadIsNoQuota) { EXPECT_EQ(Threads(), 0); }

TEST_F(CpuQuota, Version2TakesTheTightestOfAllParents) {
  MountVersion2();
  Write("proc/self/cgroup", "0::/machine/box\n");
  EXPECT_EQ(Threads(), 0);
  Write("sys/fs/cgroup/machine/box/cpu.max", "max 100000\n");
  EXPECT_EQ(Threads(), 0);
  Write("sys/fs/cgroup/machine/box/cpu.max", "800000 100000\n");
  EXPECT_EQ(Threads(), 8);
  Write("sys/fs/cgroup/machine/cpu.max", "250000 100000\n");
  EXPECT_EQ(Threads(), 2);
  Write("sys/fs/cgroup/cpu.max", "50000 100000\n");  // what a container with its own namespace sees as the top
  EXPECT_EQ(Threads(), 1);
}

TEST_F(CpuQuota, Version1) {
  MountVersion1("/");
  Write("proc/self/cgroup", "5:cpuset:/elsewhere\n4:cpu,cpuacct:/box\n0::/\n");
  Write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Threads(), 0);
  Write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(Threads(), 3);
}

// docker --cpus=2 without a namespace: the group's name is the host's, its files are at the mount point.
TEST_F(CpuQuota, Version1OfAContainer) {
  MountVersion1("/docker/abc");
  Write("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n");
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Threads(), 2);
}

TEST_F(CpuQuota, NonsenseIsNoQuota) {
  MountVersion2();
  Write("proc/self/cgroup", "0::/box\nno colons\n1:\n");
  for (const char* text : {"", "-5 100000", "100000", "100000 0", "many 1", "99999999999999999999999 1"}) {
    Write("sys/fs/cgroup/box/cpu.max", text);
    EXPECT_EQ(Threads(), 0) << text;
  }
  Write("sys/fs/cgroup/box/cpu.max", "9000000000000000000 1");
  EXPECT_GT(Threads(), 0);
}

TEST(UsableThreads, AreSomeAndNoMoreThanTheQuota) {
  EXPECT_GE(UsableThreads(), 1);
  const int quota = QuotaThreads();
  EXPECT_LE(UsableThreads(), quota > 0 ? quota : UsableThreads());
}

}  // namespace
}  // namespace stoch
