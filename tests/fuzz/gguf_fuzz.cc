// SPDX-License-Identifier: Apache-2.0
// Any bytes are either refused with InvalidInput or make a header whose tensors lie inside the file, whose metadata can
// be read by any type, whose tokenizer encodes, and whose config, if there is one, parses or is refused.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/base/error.h"
#include "loader/checkpoint/gguf/config.h"
#include "loader/checkpoint/gguf/file.h"
#include "loader/checkpoint/gguf/header.h"
#include "loader/config/decoder_config.h"
#include "loader/tokenizer/kinds.h"
#include "tests/fuzz/memory_file.h"

namespace {

void Check(bool condition) {
  if (!condition) std::abort();
}

// Returns whether body was not refused.
bool Accepts(const std::function<void()>& body) {
  try {
    body();
    return true;
  } catch (const stoch::InvalidInput& error) {
    Check(std::strchr(error.what(), '\n') == nullptr);
    return false;
  }
}

void ReadEverything(const stoch::gguf::Metadata& metadata) {
  for (const std::string_view key : metadata.Keys()) {
    Accepts([&] { metadata.String(key); });
    Accepts([&] { metadata.Integer(key); });
    Accepts([&] { metadata.Number(key); });
    Accepts([&] { metadata.Boolean(key); });
    Accepts([&] { metadata.Strings(key); });
    Accepts([&] { metadata.Integers(key); });
    Accepts([&] { metadata.Numbers(key); });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::byte> file(reinterpret_cast<const std::byte*>(data),
                                    reinterpret_cast<const std::byte*>(data) + size);
  Accepts([&] {
    const stoch::gguf::Header header = stoch::gguf::ParseHeader(file, "fuzz");
    for (const stoch::gguf::Tensor& tensor : header.tensors) {
      Check(tensor.begin_bytes >= 0 && tensor.size_bytes > 0);
      Check(tensor.begin_bytes + tensor.size_bytes <= static_cast<int64_t>(file.size()));
      std::vector<float> block(256);
      const int64_t elements = stoch::gguf::InfoOf(tensor.type).block_elements;
      stoch::gguf::Dequantize(tensor.type, file.data() + tensor.begin_bytes, elements, block.data());
    }
    ReadEverything(header.metadata);
    const auto tokenizer = stoch::MakeGgufTokenizer(header.metadata);
    Accepts([&] { tokenizer->Decode(tokenizer->Encode("a b\u00e9", {})); });
  });
  Accepts([&] {
    const stoch::test::MemoryFile memory(data, size);
    const stoch::gguf::Model model(memory.path());
    stoch::gguf::PermutesHeads(model);
    const std::string config = stoch::gguf::ConfigJson(model);
    Check(stoch::LinearParameters(stoch::ParseDecoderConfig(config, "", "fuzz")) > 0);
  });
  return 0;
}
