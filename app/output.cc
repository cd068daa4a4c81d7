// SPDX-License-Identifier: Apache-2.0
#include "app/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "app/host/descriptors.h"
#include "app/host/host.h"
#include "app/interrupt.h"
#include "kernels/base/error.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch::cli {
namespace {

// Closes a descriptor on every path.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

constexpr size_t kMostBytes = size_t{1} << 30;  // of a text: a device that never ends would take all memory

std::string ReadAll(int fd, const std::string& where) {
  std::string text;
  std::array<char, 65536> block;
  while (true) {
    const ssize_t count = ReadSome(fd, block.data(), block.size());
    if (count == 0) return text;
    if (count > 0) {
      text.append(block.data(), static_cast<size_t>(count));
      if (text.size() > kMostBytes) {
        throw InvalidInput(where + ": has more than " + std::to_string(kMostBytes) + " bytes");
      }
    } else if (errno == EINTR) {
      ThrowIfInterrupted();
    } else {
      throw InvalidInput(where + ": cannot be read: " + std::strerror(errno));
    }
  }
}

}  // namespace

void Print(std::string_view text) {
  if (const Host* host = CurrentHost(); host != nullptr) return host->print(text);
  const int error = WriteAll(STDOUT_FILENO, text);
  if (error == EPIPE) throw ReaderGone{};
  if (error != 0) throw InvalidInput(std::string("standard output: cannot be written: ") + std::strerror(error));
}

void PrintLine(std::string_view text) { Print(std::string(text) + '\n'); }

std::string ReadWholeFile(const std::string& path) {
  if (path == "-") return ReadAll(STDIN_FILENO, "standard input");
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw InvalidInput(path + ": cannot be opened: " + std::strerror(errno));
  return ReadAll(file.get(), path);
}

std::string ReadTextFile(const std::string& path) {
  std::string text = ReadWholeFile(path);
  CheckUtf8(text, (path == "-" ? "standard input" : path) + ":");
  return text;
}

void CheckCanWrite(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() >= 0) return;
  if (errno == ENOENT) {
    std::string folder = std::filesystem::path(path).parent_path().string();
    if (folder.empty()) folder = ".";
    if (!path.empty() && access(folder.c_str(), W_OK | X_OK) == 0) return;
  }
  throw InvalidInput(path + ": cannot be created: " + std::strerror(errno));
}

void WriteWholeFile(const std::string& path, std::string_view text) {
  constexpr mode_t kMode = 0644;
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (file.get() < 0) throw InvalidInput(path + ": cannot be created: " + std::strerror(errno));
  const int error = WriteAll(file.get(), text);
  if (error != 0) throw InvalidInput(path + ": cannot be written: " + std::strerror(error));
}

std::string ReadText(const std::optional<std::string>& prompt, const std::string& file) {
  if (prompt && !file.empty()) throw InvalidInput("--prompt and --file: give one of them");
  if (prompt) return *prompt;
  if (!file.empty()) return ReadTextFile(file);
  if (isatty(STDIN_FILENO) != 0) throw InvalidInput("no text: give --prompt, --file, or text on standard input");
  return ReadTextFile("-");
}

}  // namespace stoch::cli
