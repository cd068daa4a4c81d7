// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "kernels/base/error.h"
#include "loader/quote.h"

namespace stoch {
namespace {

[[noreturn]] void ThrowErrno(const std::filesystem::path& path, const char* what, int error) {
  throw InvalidInput(path.string() + ": " + what + ": " + std::generic_category().message(error));
}

int64_t SpecBytes(const SafetensorsSpec& spec, const std::string& where) {
  int64_t bytes = static_cast<int64_t>(DTypeSize(spec.dtype));
  for (const int64_t dim : spec.shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) {
      throw InvalidInput(where + ": tensor " + Quoted(spec.name) + ": expected a shape of at most 2^63 bytes, got " +
                         std::to_string(dim) + " in it");
    }
  }
  return bytes;
}

// The JSON header, padded with spaces so that the data begins at a multiple of 8 bytes.
std::string HeaderText(std::span<const SafetensorsSpec> tensors, const std::map<std::string, std::string>& metadata,
                       const std::string& where, int64_t* data_bytes) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t end = 0;
  for (const SafetensorsSpec& spec : tensors) {
    const int64_t begin = end;
    if (__builtin_add_overflow(begin, SpecBytes(spec, where), &end)) {
      throw InvalidInput(where + ": expected at most 2^63 bytes of data, tensor " + Quoted(spec.name) + " exceeds it");
    }
    nlohmann::json& entry = header[spec.name];
    if (!entry.is_null()) throw InvalidInput(where + ": tensor " + Quoted(spec.name) + " is given twice");
    entry["dtype"] = DTypeName(spec.dtype);
    entry["shape"] = spec.shape;
    entry["data_offsets"] = {begin, end};
  }
  *data_bytes = end;
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw InvalidInput(where + ": a tensor name or metadata string is not valid UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::span<const SafetensorsSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), partial_(path_.string() + ".partial") {
  const std::string header = HeaderText(tensors, metadata, path_.string(), &expected_bytes_);
  std::byte length[8];
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  fd_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) ThrowErrno(partial_, "cannot create", errno);
  try {
    Write(length, sizeof(length));
    Write(header.data(), header.size());
  } catch (...) {  // no destructor runs for a constructor that throws
    close(fd_);
    unlink(partial_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(partial_.c_str());
}

void SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  if (fd_ < 0 || size > expected_bytes_ - written_bytes_) {
    throw InvalidInput(path_.string() + ": expected " + std::to_string(expected_bytes_) + " bytes of data, got " +
                       std::to_string(size) + " more after " + std::to_string(written_bytes_));
  }
  Write(bytes.data(), bytes.size());
  written_bytes_ += size;
}

void SafetensorsWriter::Finish() {
  if (fd_ < 0 || written_bytes_ != expected_bytes_) {
    throw InvalidInput(path_.string() + ": expected " + std::to_string(expected_bytes_) + " bytes of data, got " +
                       std::to_string(written_bytes_));
  }
  // Some file systems report a full disk only here.
  if (close(std::exchange(fd_, -1)) != 0) {
    const int error = errno;
    unlink(partial_.c_str());
    ThrowErrno(partial_, "cannot write", error);
  }
  if (rename(partial_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    unlink(partial_.c_str());
    ThrowErrno(path_, "cannot create", error);
  }
}

void SafetensorsWriter::Write(const void* data, size_t size) {
  const char* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t put = write(fd_, from, size);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) ThrowErrno(partial_, "cannot write", errno);
    from += put;
    size -= static_cast<size_t>(put);
  }
}

}  // namespace stoch
