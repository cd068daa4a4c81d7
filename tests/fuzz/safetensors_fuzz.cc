// SPDX-License-Identifier: Apache-2.0
// Any bytes are either refused with InvalidInput or make a header whose tensors lie inside the file.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/base/error.h"
#include "loader/checkpoint/safetensors.h"

namespace {

void Check(bool condition) {
  if (!condition) std::abort();
}

void ParseFile(const std::vector<std::byte>& file) {
  stoch::SafetensorsHeader header;
  try {
    header = stoch::ParseSafetensorsHeader(file, "fuzz");
  } catch (const stoch::InvalidInput& error) {
    Check(std::strchr(error.what(), '\n') == nullptr);
    return;
  }
  int64_t end = -1;
  for (const stoch::SafetensorsTensor& tensor : header.tensors) {
    int64_t bytes = static_cast<int64_t>(stoch::DTypeSize(tensor.dtype));
    for (const int64_t dim : tensor.shape) bytes *= dim;
    Check(bytes == tensor.size_bytes && bytes >= 0);
    Check(end < 0 || tensor.begin_bytes == end);
    end = tensor.begin_bytes + tensor.size_bytes;
  }
  Check(end < 0 || end == static_cast<int64_t>(file.size()));
}

}  // namespace

// The input is the file itself, and once more the JSON of a file: two bytes of data size, then the header text, with
// the length in front always right, which mutation alone would hardly ever get to.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  ParseFile({bytes, bytes + size});
  if (size < 2) return 0;
  const size_t data_bytes = data[0] | static_cast<size_t>(data[1]) << 8;
  const size_t text_bytes = size - 2;
  std::vector<std::byte> file(8 + text_bytes + data_bytes);
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(text_bytes >> (8 * i));
  if (text_bytes > 0) std::memcpy(file.data() + 8, data + 2, text_bytes);
  ParseFile(file);
  return 0;
}
