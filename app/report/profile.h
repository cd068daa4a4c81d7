// SPDX-License-Identifier: Apache-2.0
// The results of `stoch profile`, in four forms.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "research/energy/energy.h"
#include "research/profile.h"

namespace stoch::cli {

struct ProfileReport {
  std::string model, model_sha256, text_sha256;
  std::string mode;  // "local", "propagated"
  int64_t ctx = 0;
  std::vector<ProfileResult> results;
  std::optional<EnergyTable> energy;
};

// format: "md", "csv", "json", "jsonl". csv holds rows only; jsonl a line for each row, then one for each configuration.
std::string FormatProfile(const ProfileReport& report, const std::string& format);

}  // namespace stoch::cli
