// SPDX-License-Identifier: Apache-2.0
// Facts that must agree on all ranks of a job before one of them reads its weights.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "loader/checkpoint/weight_store.h"

namespace stoch {

struct RankFact {
  std::string name, value;
  bool operator==(const RankFact&) const = default;
};

// The commit of the program; sha256 of config.json (or the first MiB of a GGUF file), of the names, types and shapes of all
// tensors, and of the first 4 KiB of each. Reads no more of the weights than these bytes.
std::vector<RankFact> FactsOf(const std::string& build, const ModelFiles& files);
// Errors: InvalidInput naming the first fact that differs: "commit: 8af3053, rank 0 has 9310e4d".
void CheckFacts(std::span<const RankFact> here, std::span<const RankFact> of_rank_0);

}  // namespace stoch
