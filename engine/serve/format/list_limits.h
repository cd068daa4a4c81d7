// SPDX-License-Identifier: Apache-2.0
// How many entries the lists of a completion's body may have: checked while the body is read, so that a list that is
// refused is never kept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "loader/bounded_json.h"

namespace stoch::serve {

struct ListLimit {
  const char* field;
  int64_t most;
  const char* entries;  // what they are, for people
};

inline constexpr ListLimit kStops = {"stop", 16, "strings"};
inline constexpr ListLimit kStopIds = {"stop_token_ids", 1024, "ids"};
inline constexpr ListLimit kBiases = {"logit_bias", 1024, "entries"};

// Errors: RequestError(400) naming the field for more entries than it may have.
void CheckEntries(const ListLimit& limit, size_t entries);

// For ParseBoundedJson: the lists that both kinds of completions have.
JsonEntryCheck ChatLists();
// Those, and a prompt of at most `max_ids` token ids, or of at most max_choices prompts.
// Errors: RequestError(400) naming "n" for more prompts, as one choice of each would be too many.
JsonEntryCheck CompletionLists(int64_t max_ids, int64_t max_choices);

}  // namespace stoch::serve
