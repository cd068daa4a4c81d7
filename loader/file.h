// Read-only files: mapped, or small ones read whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace stoch {

// A regular file mapped into memory while the object lives. Move-only.
//
// Requires: nobody shortens the file meanwhile: a read past the new end would be SIGBUS.
class MappedFile {
 public:
  // Errors: InvalidInput if it cannot be opened, or is no regular file (symbolic links are followed).
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

  // Hint: these bytes will not be read again soon; their whole pages leave this process (a later read is still right).
  void Release(size_t offset, size_t size) const;

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// What:   the content of a regular file of at most max_bytes.
// Errors: InvalidInput if it cannot be read, is no regular file, or is larger.
std::string ReadSmallFile(const std::filesystem::path& path, int64_t max_bytes);

}  // namespace stoch
