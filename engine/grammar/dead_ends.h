// SPDX-License-Identifier: Apache-2.0
// Grammars, or parts of them, that no text completes.
#pragma once

#include <string>

namespace stoch {

// Why an answer of this grammar may never be complete: no text is of it, or some rule or alternative that the root leads to
// has none (an empty character class, a rule that always leads back to itself). Masks would allow tokens up to there, and
// then none.
// grammar: as xgrammar::Grammar::ToString writes it.
// Returns: words that go on after a name of the grammar: "accepts no text"; "" where each part has a text.
std::string WhyNoText(const std::string& grammar);

}  // namespace stoch
