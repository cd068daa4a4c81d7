// SPDX-License-Identifier: Apache-2.0
// Why xgrammar refuses a grammar, in words for who wrote the grammar.
#pragma once

#include <string>

#include "engine/request/grammar.h"

namespace stoch {

// One line of `said` without conditions of xgrammar's source, and without places in what it made of a schema or a regular
// expression; places in the grammar itself stay ("line 1, column 10: ..."). 400 bytes at most, because some quote the grammar.
std::string ReasonOf(GrammarSpec::Kind kind, const std::string& said);

}  // namespace stoch
