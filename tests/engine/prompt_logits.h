// SPDX-License-Identifier: Apache-2.0
// All logits of one prompt in one pass.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace stoch::test {

// F32 [ids.size(), vocab_size].
inline std::vector<float> PromptLogits(Engine& engine, const std::vector<int32_t>& ids) {
  const auto rows = static_cast<int64_t>(ids.size());
  const auto sequence = engine.NewSequence(rows);
  sequence->Append(ids);
  const StepItem item{sequence.get(), rows, StepOutput::kAll};
  EXPECT_EQ(engine.Step({&item, 1}), rows);
  std::vector<float> logits(ids.size() * static_cast<size_t>(engine.config().vocab_size));
  engine.ReadLogits(0, rows, logits.data());
  return logits;
}

}  // namespace stoch::test
