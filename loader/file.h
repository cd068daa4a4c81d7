// SPDX-License-Identifier: Apache-2.0
// Files: mapped, small ones read whole, or replaced as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stoch {

// Which file, and which state of it. A file that is replaced or written to has another one.
struct FileStamp {
  std::filesystem::path path;
  uint64_t device = 0, inode = 0;
  int64_t size_bytes = 0;
  int64_t changed_ns = 0;  // since 1970

  bool operator==(const FileStamp&) const = default;
};

// Of the file that is there now, none where it cannot be found.
std::optional<FileStamp> StampOf(const std::filesystem::path& path);

// The name of the first file that is another one than when it was stamped, "" if none is. One that is not there now is
// no other one: whoever has it mapped has it still.
std::string ChangedFile(std::span<const FileStamp> stamps);

// A file that was read, and what it held then.
struct FileNote {
  FileStamp stamp;
  bool whole = true;   // sha256 is of all of it, else (beyond kMaxHashedBytes) of its size and pieces all over it
  std::string sha256;  // 64 hex digits

  static constexpr size_t kMaxHashedBytes = size_t{64} << 20;
  // Differs where the bytes may: sha256, and the stamp too where that is not of all of them.
  std::string Digest() const;
};

// Notes every file that its thread opens by MappedFile or ReadSmallFile while it lives, so that what a program has read
// can be told apart from what the files say later, whoever read them and whatever they are for.
//
// Threads: one; a record that is made while another one lives gets the notes meanwhile.
class FileRecord {
 public:
  FileRecord();
  ~FileRecord();
  FileRecord(const FileRecord&) = delete;
  FileRecord& operator=(const FileRecord&) = delete;

  // In the order in which they were read first, each path once.
  const std::vector<FileNote>& notes() const { return notes_; }

  // Of those who read. Errors: DeviceError where a file holds other bytes than when it was noted first.
  static void Note(const FileStamp& stamp, std::span<const std::byte> bytes);

 private:
  std::vector<FileNote> notes_;
  FileRecord* const outer_;
};

// Of a file as it is now. Errors: as ReadSmallFile.
FileNote NoteOf(const std::filesystem::path& path);

// A regular file mapped into memory while the object lives. Move-only.
//
// Requires: nobody writes to the file meanwhile: other bytes would be read, and past a new end there is SIGBUS. Whoever
//           holds one for long asks ChangedFile from time to time.
class MappedFile {
 public:
  // Errors: InvalidInput if it cannot be opened, or is no regular file (symbolic links are followed).
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const FileStamp& stamp() const { return stamp_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

  // Hint: these bytes will not be read again soon; their whole pages leave this process (a later read is still right).
  void Release(size_t offset, size_t size) const;

 private:
  MappedFile() = default;

  void* data_ = nullptr;
  size_t size_ = 0;
  FileStamp stamp_;
};

// Writes a file next to `path` that takes its place once it is whole: who reads sees the old content or the new, also
// where several processes write. Returns: false where it cannot be written; `path` is as it was then.
bool ReplaceFile(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write);

// The content of a regular file of at most max_bytes.
// Errors: InvalidInput if it cannot be read, is no regular file, or is larger.
std::string ReadSmallFile(const std::filesystem::path& path, int64_t max_bytes);

}  // namespace stoch
