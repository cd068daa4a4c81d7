// SPDX-License-Identifier: Apache-2.0
// Strings of bounded length in grammars that xgrammar makes of JSON schemas.
#pragma once

#include <string>

namespace stoch {

// The grammar with a count of characters for each string that may have several more than it must, where xgrammar would
// have a state for each character: a schema with maxLength 64 compiles in 0.02 s instead of 1.5 s for 128 256 tokens.
// grammar: as xgrammar::Grammar::ToString writes it, a rule a line.
// Returns: a grammar of the same texts; "" where it has no such string.
std::string WithCountedStrings(const std::string& grammar);

}  // namespace stoch
