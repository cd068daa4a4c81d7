// SPDX-License-Identifier: Apache-2.0
// Any bytes are either refused with one sentence or read as a threshold table, a hybrid mask, smoothing factors, a table
// of a function, the plan of a sweep or block YAML.

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "loader/research/block_yaml.h"
#include "loader/research/mask_file.h"
#include "loader/research/mp_file.h"
#include "loader/research/nonlinear_file.h"
#include "loader/research/smooth_file.h"
#include "loader/research/sweep_file.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/try.h"

using stoch::test::Check;
using stoch::test::Try;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  Try([&] {
    std::string contents;
    const stoch::MpFile mp = stoch::ParseMpFile(text, "fuzz", "/nonexistent", &contents);
    Check(mp.levels.size() >= 2 && mp.levels.size() <= 32);
    for (const auto& [key, bucket] : mp.buckets) Check(bucket.thresholds.size() < 32);
  });
  Try([&] {
    for (const auto& [op, entries] : stoch::ParseMaskFile(text, "fuzz", 0).schedule) {
      for (const std::string& entry : entries) Check(entry == "sc" || entry == "fp" || entry.starts_with("int"));
    }
  });
  Try([&] {
    const stoch::test::MemoryFile file(data, size);
    for (const auto& [tensor, scales] : stoch::ReadSmoothFile(file.path()).scales) {
      for (const float scale : scales) Check(std::isfinite(scale) && scale > 0);
    }
  });
  Try([&] {
    const stoch::test::MemoryFile file(data, size);
    const stoch::NonlinearTable table = stoch::ReadNonlinearFile(file.path(), stoch::NonlinearFunction::kExp);
    Check(table.At(0.0f) > 0);
  });
  Try([&] {
    const stoch::SweepFile sweep = stoch::ParseSweepFile(text, "fuzz");
    Check(!sweep.runs.empty() && sweep.runs.size() <= 65536 && !sweep.metrics.empty());
  });
  Try([&] { Check(stoch::ParseBlockYaml(text, "fuzz").size() <= text.size() + 1); });
  return 0;
}
