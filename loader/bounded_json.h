// SPDX-License-Identifier: Apache-2.0
// JSON of hostile files: nlohmann-json with limits and one-sentence errors.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "loader/json_types.h"

namespace stoch {

// Values of one document, containers counted: a value of two bytes takes fifty in memory. A tokenizer.json of Llama-3
// has 0.5 million.
inline constexpr int64_t kMaxJsonFileValues = 8'000'000;

// A list or an object while it is read.
struct JsonEntries {
  size_t count = 0;
  bool is_list = false;
  bool begins_with_number = false;  // of a list
};
// Called for a list or an object that is a member of the outermost object, before one more entry is added: throws where
// that is one too many, so that no more are ever kept.
using JsonEntryCheck = std::function<void(const std::string& member, const JsonEntries& entries)>;

// The document. Nesting deeper than max_depth, more than max_values values, one that takes more than about max_bytes of
// memory, and a key given twice in one object are refused; so is what `check` throws for.
// Errors: InvalidInput naming `where`, the byte where the text stops being JSON, or the key; what `check` throws.
nlohmann::json ParseBoundedJson(std::string_view text, const std::string& where, int max_depth = 32,
                                int64_t max_values = kMaxJsonFileValues, int64_t max_bytes = INT64_MAX,
                                const JsonEntryCheck& check = nullptr);

// The same, for a text of megabytes that nobody needs any more: its pages go back to the system as they are read, since
// a string of the document takes its length twice while it is read.
SortedJson ConsumeBoundedJson(std::string text, const std::string& where, int max_depth, int64_t max_values,
                              int64_t max_bytes, const JsonEntryCheck& check = nullptr);

// ConsumeBoundedJson with the members of objects in the order of the text.
OrderedJson ConsumeOrderedJson(std::string text, const std::string& where, int max_depth, int64_t max_values,
                               int64_t max_bytes, const JsonEntryCheck& check = nullptr);

// About what a document takes in memory, as max_bytes counts it.
int64_t JsonBytes(const OrderedJson& document);

// Leaves a document empty, from its innermost values outwards, and takes no memory for it. The destructor moves all values
// of all levels into one list first, which takes as much memory again. Recursion is as deep as the document is.
void ReleaseJson(nlohmann::json* document);
void ReleaseJson(SortedJson* document);
void ReleaseJson(OrderedJson* document);

// A document that takes no more memory when it goes than when it came.
template <class Document>
struct ReleasedJson {
  Document json;
  ~ReleasedJson() { ReleaseJson(&json); }
};

// "a string", "an array", ... for messages.
std::string_view JsonTypeName(const nlohmann::json& value);
// A value for a message, to be quoted: the text of a string, all else as JSON.
std::string JsonText(const nlohmann::json& value);
std::string_view JsonTypeName(const SortedJson& value);

}  // namespace stoch
