// SPDX-License-Identifier: Apache-2.0
// Read-only files: mapped, or small ones read whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace stoch {

// Which file, and which state of it. A file that is replaced or written to has another one.
struct FileStamp {
  std::filesystem::path path;
  uint64_t device = 0, inode = 0;
  int64_t size_bytes = 0;
  int64_t changed_ns = 0;  // since 1970

  bool operator==(const FileStamp&) const = default;
};

// The name of the first file that is not as it was when it was stamped, "" if all are.
std::string ChangedFile(std::span<const FileStamp> stamps);

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
  void* data_ = nullptr;
  size_t size_ = 0;
  FileStamp stamp_;
};

// The content of a regular file of at most max_bytes.
// Errors: InvalidInput if it cannot be read, is no regular file, or is larger.
std::string ReadSmallFile(const std::filesystem::path& path, int64_t max_bytes);

}  // namespace stoch
