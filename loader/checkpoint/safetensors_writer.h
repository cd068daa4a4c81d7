// SPDX-License-Identifier: Apache-2.0
// Writes safetensors files, streaming.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"

namespace stoch {

struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

// The header at once, then the data of the tensors in the order of their specs, in pieces of any size, so that a file
// may be larger than memory. The file appears under its name only when Finish succeeds; until then it is PATH.partial,
// which the destructor removes.
// Errors: InvalidInput from every member: a name twice or not UTF-8, a negative or overflowing shape, more or fewer
//         bytes than the specs need, a file that cannot be created, a full disk.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::filesystem::path path, std::span<const SafetensorsSpec> tensors,
                    const std::map<std::string, std::string>& metadata);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  ~SafetensorsWriter();

  void Append(std::span<const std::byte> bytes);
  void Finish();

 private:
  void Write(const void* data, size_t size);

  std::filesystem::path path_;
  std::filesystem::path partial_;
  int fd_ = -1;
  int64_t expected_bytes_ = 0;
  int64_t written_bytes_ = 0;  // of data
};

}  // namespace stoch
