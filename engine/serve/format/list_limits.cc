// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/format/list_limits.h"

#include <string>

#include "engine/serve/http/request_error.h"

namespace stoch::serve {
namespace {

constexpr int kBadRequest = 400;

void CheckSharedLists(const std::string& field, size_t entries) {
  for (const ListLimit& limit : {kStops, kStopIds, kBiases}) {
    if (field == limit.field) CheckEntries(limit, entries);
  }
}

void CheckPrompt(const JsonEntries& prompt, int64_t max_ids, int64_t max_choices) {
  if (!prompt.is_list || prompt.count == 0) return;
  if (prompt.begins_with_number) return CheckEntries({"prompt", max_ids, "token ids"}, prompt.count + 1);
  if (static_cast<int64_t>(prompt.count) < max_choices) return;
  throw RequestError(
      kBadRequest, "n",
      "n: the list of prompts makes too many sequences; allowed are " + std::to_string(max_choices) + " per request");
}

}  // namespace

void CheckEntries(const ListLimit& limit, size_t entries) {
  if (static_cast<int64_t>(entries) <= limit.most) return;
  const std::string field = limit.field;
  throw RequestError(kBadRequest, field,
                     field + ": has too many " + limit.entries + "; allowed are " + std::to_string(limit.most));
}

JsonEntryCheck ChatLists() {
  return [](const std::string& field, const JsonEntries& list) { CheckSharedLists(field, list.count + 1); };
}

JsonEntryCheck CompletionLists(int64_t max_ids, int64_t max_choices) {
  return [=](const std::string& field, const JsonEntries& list) {
    if (field == "prompt") return CheckPrompt(list, max_ids, max_choices);
    CheckSharedLists(field, list.count + 1);
  };
}

}  // namespace stoch::serve
