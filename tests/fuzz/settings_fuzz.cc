// SPDX-License-Identifier: Apache-2.0
// Any text is either refused with one sentence or is settings of --sc that say the same once they have been described.
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "models/sc_model_config.h"
#include "research/trace.h"
#include "tests/fuzz/try.h"

using stoch::test::Check;
using stoch::test::Try;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (text.find('\n') != std::string::npos) return 0;  // messages repeat settings; tools/stoch joins their lines
  std::optional<stoch::ScModelConfig> config;
  Try([&] { config = stoch::ParseScModelConfig(std::array{text}); });
  if (config) {  // what describes it may not be refused
    const std::string described = stoch::Describe(*config);
    const stoch::ScModelConfig again = stoch::ParseScModelConfig(std::array{described});
    Check(again == *config && stoch::Describe(again) == described);
  }
  Try([&] {
    const stoch::ArrayShape array = stoch::ParseArrayShape(text);
    Check(array.rows > 0 && array.cols > 0);
  });
  return 0;
}
