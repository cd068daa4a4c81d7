// SPDX-License-Identifier: Apache-2.0
#include "loader/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"

namespace stoch {
namespace {

[[noreturn]] void ThrowErrno(const std::filesystem::path& path, const char* what, int error) {
  throw InvalidInput(path.string() + ": " + what + ": " + std::generic_category().message(error));
}

FileStamp Stamped(const std::filesystem::path& path, const struct stat& status) {
  return {path, status.st_dev, status.st_ino, status.st_size,
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

// An open descriptor of a regular file and its size.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path) {
    // O_NONBLOCK: opening a named pipe must be an error, not a wait for its other end.
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) ThrowErrno(path, "cannot open", errno);
    struct stat status {};
    if (fstat(fd_, &status) != 0) {
      const int error = errno;
      close(fd_);
      ThrowErrno(path, "cannot stat", error);
    }
    if (!S_ISREG(status.st_mode)) {
      close(fd_);
      throw InvalidInput(path.string() + ": expected a regular file, got a " +
                         (S_ISDIR(status.st_mode) ? "directory" : "device, pipe or socket"));
    }
    size_ = static_cast<size_t>(status.st_size);
    stamp_ = Stamped(path, status);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { close(fd_); }

  int fd() const { return fd_; }
  size_t size() const { return size_; }
  const FileStamp& stamp() const { return stamp_; }

 private:
  int fd_ = -1;
  size_t size_ = 0;
  FileStamp stamp_;
};

}  // namespace

std::string ChangedFile(std::span<const FileStamp> stamps) {
  for (const FileStamp& stamp : stamps) {
    struct stat status {};
    if (stat(stamp.path.c_str(), &status) != 0) return stamp.path.string();
    if (Stamped(stamp.path, status) != stamp) return stamp.path.string();
  }
  return "";
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const OpenFile file(path);
  stamp_ = file.stamp();
  if (file.size() == 0) return;  // mmap refuses empty ranges
  void* data = mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) ThrowErrno(path, "cannot map", errno);
  data_ = data;
  size_ = file.size();
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      stamp_(std::move(other.stamp_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(stamp_, other.stamp_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

void MappedFile::Release(size_t offset, size_t size) const {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page;
  const size_t end = (offset + size) / page * page;
  if (end > begin && end <= size_) madvise(static_cast<char*>(data_) + begin, end - begin, MADV_DONTNEED);
}

std::string ReadSmallFile(const std::filesystem::path& path, int64_t max_bytes) {
  const OpenFile file(path);
  if (file.size() > static_cast<size_t>(max_bytes)) {
    throw InvalidInput(path.string() + ": expected at most " + std::to_string(max_bytes) + " bytes, got " +
                       std::to_string(file.size()));
  }
  std::string content(file.size(), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = read(file.fd(), content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ThrowErrno(path, "cannot read", errno);
    if (got == 0) break;  // shortened meanwhile
    done += static_cast<size_t>(got);
  }
  content.resize(done);
  return content;
}

}  // namespace stoch
