// SPDX-License-Identifier: Apache-2.0
#include "loader/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <span>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"
#include "loader/sha256.h"

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

// A clone without Git LFS has a few lines of text in the place of every large file.
void RefuseLfsPointer(const std::filesystem::path& path, std::string_view content) {
  constexpr size_t kMaxPointerBytes = 1024;  // by its specification
  if (content.size() >= kMaxPointerBytes || !content.starts_with("version https://git-lfs")) return;
  throw InvalidInput(path.string() +
                     ": this is a Git LFS pointer, not the file it points to; git lfs pull in its folder fetches that");
}

}  // namespace

std::optional<FileStamp> StampOf(const std::filesystem::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  return Stamped(path, status);
}

std::string ChangedFile(std::span<const FileStamp> stamps) {
  for (const FileStamp& stamp : stamps) {
    if (StampOf(stamp.path).value_or(stamp) != stamp) return stamp.path.string();
  }
  return "";
}

namespace {

thread_local FileRecord* recording = nullptr;

std::string ReadAll(const OpenFile& file) {
  std::string content(file.size(), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = read(file.fd(), content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ThrowErrno(file.stamp().path, "cannot read", errno);
    if (got == 0) break;  // shortened meanwhile
    done += static_cast<size_t>(got);
  }
  content.resize(done);
  return content;
}

// Few enough to be read in no time from a cold disk, and more than a file of other weights can have in common.
std::string HashOfPieces(std::span<const std::byte> bytes) {
  constexpr size_t kPieces = 32;
  constexpr size_t kPieceBytes = 4096;
  Sha256 hash;
  hash.Add(std::to_string(bytes.size()) + "\n");
  for (size_t i = 0; i < kPieces; ++i) {
    hash.Add(bytes.subspan((bytes.size() - kPieceBytes) / (kPieces - 1) * i, kPieceBytes));
  }
  hash.Add(bytes.last(kPieceBytes));
  return hash.Hex();
}

FileNote Noted(const FileStamp& stamp, std::span<const std::byte> bytes) {
  FileNote note{stamp, bytes.size() <= FileNote::kMaxHashedBytes, ""};
  if (!note.whole) {
    note.sha256 = HashOfPieces(bytes);
    return note;
  }
  Sha256 hash;
  hash.Add(bytes);
  note.sha256 = hash.Hex();
  return note;
}

}  // namespace

std::string FileNote::Digest() const {
  if (whole) return sha256;
  return sha256 + " " + std::to_string(stamp.size_bytes) + " " + std::to_string(stamp.changed_ns) + " " +
         std::to_string(stamp.device) + ":" + std::to_string(stamp.inode);
}

FileRecord::FileRecord() : outer_(std::exchange(recording, this)) {}

FileRecord::~FileRecord() { recording = outer_; }

void FileRecord::Note(const FileStamp& stamp, std::span<const std::byte> bytes) {
  if (recording == nullptr) return;
  FileNote note = Noted(stamp, bytes);
  std::vector<FileNote>& notes = recording->notes_;
  const auto known =
      std::find_if(notes.begin(), notes.end(), [&](const FileNote& other) { return other.stamp.path == stamp.path; });
  if (known == notes.end()) {
    notes.push_back(std::move(note));
  } else if (known->Digest() != note.Digest()) {
    throw DeviceError(stamp.path.string() + " was changed while it was read");
  }
}

FileNote NoteOf(const std::filesystem::path& path) {
  const OpenFile file(path);
  if (file.size() > FileNote::kMaxHashedBytes) {
    const MappedFile mapped(path);
    return Noted(mapped.stamp(), mapped.bytes());
  }
  const std::string content = ReadAll(file);  // not mapped: it may be about to become shorter
  return Noted(file.stamp(), std::as_bytes(std::span(content)));
}

MappedFile::MappedFile(const std::filesystem::path& path) : MappedFile() {
  const OpenFile file(path);
  stamp_ = file.stamp();
  if (file.size() > 0) {  // mmap refuses empty ranges
    void* data = mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.fd(), 0);
    if (data == MAP_FAILED) ThrowErrno(path, "cannot map", errno);
    data_ = data;
    size_ = file.size();
  }
  RefuseLfsPointer(path, {static_cast<const char*>(data_), size_});
  FileRecord::Note(stamp_, bytes());
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

bool ReplaceFile(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write) {
  const std::filesystem::path next = path.string() + ".next." + std::to_string(getpid());
  std::ofstream file(next, std::ios::binary | std::ios::trunc);
  write(file);
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(next, path, error);
  if (file && !error) return true;
  std::filesystem::remove(next, error);
  return false;
}

std::string ReadSmallFile(const std::filesystem::path& path, int64_t max_bytes) {
  const OpenFile file(path);
  if (file.size() > static_cast<size_t>(max_bytes)) {
    throw InvalidInput(path.string() + ": expected at most " + std::to_string(max_bytes) + " bytes, got " +
                       std::to_string(file.size()));
  }
  std::string content = ReadAll(file);
  RefuseLfsPointer(path, content);
  FileRecord::Note(file.stamp(), std::as_bytes(std::span(content)));
  return content;
}

}  // namespace stoch
