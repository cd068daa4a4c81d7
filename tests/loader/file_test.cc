// SPDX-License-Identifier: Apache-2.0
// Mapped files: what Release gives back, and moves.

#include "loader/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <utility>

#include "tests/support/temp_dir.h"

namespace stoch {
namespace {

using test::TempDir;

constexpr size_t kFileBytes = 16 << 20;

// Resident bytes of this process that are mapped from files.
int64_t MappedResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  int64_t shared = 0;
  statm >> total >> resident >> shared;
  return shared * sysconf(_SC_PAGESIZE);
}

int64_t SumOf(const MappedFile& file) {
  return std::accumulate(file.bytes().begin(), file.bytes().end(), int64_t{0},
                         [](int64_t sum, std::byte byte) { return sum + std::to_integer<int64_t>(byte); });
}

TEST(MappedFile, ReleaseGivesThePagesBackAndKeepsTheContent) {
  const TempDir folder;
  test::WriteFile(folder / "x", std::string(kFileBytes, '\1'));
  const MappedFile file(folder / "x");
  const int64_t before = MappedResidentBytes();
  EXPECT_EQ(SumOf(file), static_cast<int64_t>(kFileBytes));
  EXPECT_GT(MappedResidentBytes() - before, static_cast<int64_t>(kFileBytes) / 2);
  file.Release(0, kFileBytes / 2);
  file.Release(kFileBytes / 2 + 1, kFileBytes / 2 - 1);
  EXPECT_LT(MappedResidentBytes() - before, static_cast<int64_t>(kFileBytes) / 4);
  EXPECT_EQ(SumOf(file), static_cast<int64_t>(kFileBytes));
}

TEST(MappedFile, ReleaseOfLessThanAPageIsHarmless) {
  const TempDir folder;
  test::WriteFile(folder / "x", "abc");
  const MappedFile file(folder / "x");
  file.Release(1, 1);
  file.Release(0, 3);
  EXPECT_EQ(std::memcmp(file.bytes().data(), "abc", 3), 0);
}

TEST(MappedFile, MovesKeepTheMapping) {
  const TempDir folder;
  test::WriteFile(folder / "x", "abc");
  test::WriteFile(folder / "y", "de");
  MappedFile x(folder / "x");
  MappedFile y(folder / "y");
  const std::byte* data = x.bytes().data();
  y = std::move(x);
  EXPECT_EQ(y.bytes().data(), data);
  const MappedFile z(std::move(y));
  EXPECT_EQ(z.bytes().data(), data);
  EXPECT_EQ(z.bytes().size(), 3u);
}

TEST(MappedFile, EmptyFilesHaveNoBytes) {
  const TempDir folder;
  test::WriteFile(folder / "x", "");
  EXPECT_TRUE(MappedFile(folder / "x").bytes().empty());
  EXPECT_EQ(ReadSmallFile(folder / "x", 0), "");
}

}  // namespace
}  // namespace stoch
