// SPDX-License-Identifier: Apache-2.0
// Mapped files: what Release gives back, and moves; notes of what was read.

#include "loader/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
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

TEST(FileRecord, NotesWhatItsThreadReadsOnceAndInOrder) {
  const TempDir folder;
  test::WriteFile(folder / "a", "one");
  test::WriteFile(folder / "b", "two");
  ReadSmallFile(folder / "b", 10);  // nobody asks
  const FileRecord record;
  ReadSmallFile(folder / "b", 10);
  const MappedFile mapped(folder / "a");
  ReadSmallFile(folder / "b", 10);
  std::thread([&] { ReadSmallFile(folder / "a", 10); }).join();
  ASSERT_EQ(record.notes().size(), 2u);
  EXPECT_EQ(record.notes()[0].stamp.path, folder / "b");
  EXPECT_EQ(record.notes()[0].sha256, "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3");  // sha256sum
  EXPECT_EQ(record.notes()[1].sha256, NoteOf(folder / "a").sha256);
  EXPECT_EQ(record.notes()[1].stamp, mapped.stamp());
  EXPECT_EQ(record.notes()[1].Digest(), record.notes()[1].sha256);
}

TEST(FileRecord, OtherBytesUnderTheSameNameAreAnError) {
  const TempDir folder;
  test::WriteFile(folder / "a", "one");
  const FileRecord record;
  ReadSmallFile(folder / "a", 10);
  test::WriteFile(folder / "a", "one");  // the same again is none
  ReadSmallFile(folder / "a", 10);
  test::WriteFile(folder / "a", "two");
  EXPECT_THROW(ReadSmallFile(folder / "a", 10), DeviceError);
  EXPECT_THROW(MappedFile(folder / "a"), DeviceError);
}

// Pieces of a large file, and all that its stamp says.
TEST(FileRecord, LargeFilesAreToldApartByPiecesAndStamps) {
  const TempDir folder;
  const std::filesystem::path path = folder / "large";
  const auto write = [&](size_t at, char byte) {
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(at))
        .put(byte);
  };
  test::WriteFile(path, "x");
  std::filesystem::resize_file(path, FileNote::kMaxHashedBytes + 1);  // sparse
  const FileNote first = NoteOf(path);
  EXPECT_FALSE(first.whole);
  for (const size_t at : {size_t{0}, size_t{FileNote::kMaxHashedBytes}}) {
    write(at, 'y');
    const FileNote next = NoteOf(path);
    EXPECT_NE(next.sha256, first.sha256) << at;
    EXPECT_NE(next.Digest(), first.Digest()) << at;
    write(at, at == 0 ? 'x' : '\0');
    const FileNote back = NoteOf(path);
    EXPECT_EQ(back.sha256, first.sha256) << at;
    EXPECT_NE(back.Digest(), first.Digest()) << at;  // it was written to
  }
}

TEST(FileStamp, AFileThatIsAwayIsNotChanged) {
  const TempDir folder;
  test::WriteFile(folder / "a", "one");
  const MappedFile mapped(folder / "a");
  const std::vector<FileStamp> stamps = {mapped.stamp()};
  EXPECT_EQ(ChangedFile(stamps), "");
  std::filesystem::rename(folder / "a", folder / "b");
  EXPECT_EQ(ChangedFile(stamps), "");
  test::WriteFile(folder / "a", "one");
  EXPECT_EQ(ChangedFile(stamps), (folder / "a").string());
  std::filesystem::rename(folder / "b", folder / "a");
  EXPECT_EQ(ChangedFile(stamps), "");
}

TEST(ReplaceFileTest, ReadersSeeTheOldContentOrTheNew) {
  const TempDir folder;
  const std::filesystem::path path = folder / "a";
  const auto fill = [&](char c) {
    return ReplaceFile(path, [c](std::ostream& file) {
      for (int i = 0; i < 1000; ++i) file << std::string(100, c) << std::flush;
    });
  };
  ASSERT_TRUE(fill('a'));
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (const char c : std::string("bcdefghij")) EXPECT_TRUE(fill(c));
    done = true;
  });
  while (!done) {
    const std::string text = ReadSmallFile(path, int64_t{1} << 20);
    EXPECT_EQ(text, std::string(100'000, text.empty() ? '?' : text[0]));
  }
  writer.join();
  EXPECT_FALSE(ReplaceFile(folder / "nowhere/a", [](std::ostream&) {}));
  EXPECT_FALSE(ReplaceFile(path, [](std::ostream& file) { file.setstate(std::ios::failbit); }));
  EXPECT_EQ(ReadSmallFile(path, int64_t{1} << 20), std::string(100'000, 'j'));
  // And nothing is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace stoch
