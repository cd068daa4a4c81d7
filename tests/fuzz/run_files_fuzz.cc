// SPDX-License-Identifier: Apache-2.0
// Any bytes are either refused with one sentence or read as what runs leave for later ones: rows of a sweep, shards to be
// merged, exact logits, weights of errors.
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/kl_divergence.h"
#include "research/calibrate/error_weights.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/try.h"
#include "tools/stoch/research/sweep_log.h"
#include "tools/stoch/research/sweep_merge.h"

using stoch::test::Check;
using stoch::test::MemoryFile;
using stoch::test::Try;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> keys = {"a", "b", "c"};
  Try([&] {
    const MemoryFile file(data, size);
    const stoch::cli::SweepLog log(file.path().string(), keys, true);
    for (const std::string& row : log.Rows()) Check(nlohmann::json::parse(row).is_object());
  });
  const size_t half = size / 2;
  Try([&] { Check(stoch::cli::MergeShards({"fuzz"}, {text}).size() <= size + 1); });
  Try([&] {
    Check(stoch::cli::MergeShards({"0", "1"}, {text.substr(0, half), text.substr(half)}).size() <= size + 2);
  });
  Try([&] {
    const MemoryFile file(data, size);
    stoch::KlBaseReader reader(file.path(), 4);
    Check(reader.rows() >= 0 && reader.rows() <= static_cast<int64_t>(size));
    std::vector<float> logits(8);
    const int32_t targets[] = {0, 1};
    reader.Read(targets, logits);
  });
  Try([&] {
    for (const auto& [key, weight] : stoch::ParseErrorWeights(text, "fuzz", 4)) {
      Check(!key.empty() && std::isfinite(weight) && weight >= 0);
    }
  });
  return 0;
}
