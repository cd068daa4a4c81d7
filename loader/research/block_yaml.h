// SPDX-License-Identifier: Apache-2.0
// The YAML that tools write: block mappings and sequences, flow collections on one line, plain and quoted scalars.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace stoch {

// The document as JSON: plain null, true, false and finite numbers are such, every other scalar is text.
// Errors: InvalidInput, one sentence with name and line: anchors, aliases, tags, block scalars, tabs as indentation, keys
//         given twice, text beyond 64 MiB, nesting beyond 32, more than kMaxYamlLines lines.
nlohmann::json ParseBlockYaml(std::string_view text, const std::string& name);

inline constexpr size_t kMaxYamlLines = 1'000'000;

}  // namespace stoch
