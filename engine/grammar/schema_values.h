// SPDX-License-Identifier: Apache-2.0
// Values of a JSON schema next to what it says about them (schema_check.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "loader/bounded_json.h"

namespace stoch {

// The narrowest type of a value.
std::string TypeOf(const SortedJson& value);

// Constraints on values of its kind that BrokenBound does not compare with one.
std::vector<std::string_view> UncomparedBy(const SortedJson& value);

// The bound of the schema that the value does not keep to; "": it keeps to all.
std::string_view BrokenBound(const SortedJson& schema, const SortedJson& value);

// Whether a pattern names a quote, a backslash or a control character outside of [classes], where the grammar gets it right:
// JSON writes those in another way.
bool NeedsEscapes(std::string_view pattern);

// Whether no number of the six decimals that the grammar of a range has is within it.
bool IsTooNarrow(const SortedJson& schema);

}  // namespace stoch
