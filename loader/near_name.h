// SPDX-License-Identifier: Apache-2.0
// The known name that an unknown one may be a typing error of: of fields, options, commands and settings alike.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stoch {

// The one of `known` that the fewest changes make of `name` (a character more, less or another one, two neighbours exchanged),
// where one in four characters changes at most; else one that `name` begins with, or that begins with it. "" where none is near,
// or `name` has more than 40 bytes.
std::string NearName(std::string_view name, const std::vector<std::string>& known);

// "; did you mean NAME?", "" where no name is near.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& known);

}  // namespace stoch
