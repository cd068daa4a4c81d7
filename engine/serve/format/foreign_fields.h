// SPDX-License-Identifier: Apache-2.0
// Fields that requests bring and this server does not have: those of other servers, of later APIs, and typing errors.
#pragma once

#include <span>

#include "engine/serve/format/json_fields.h"

namespace stoch::serve {

// An object of a request; kEither: a completion or a chat.
enum class FieldPlace : uint8_t { kEither, kCompletion, kChat, kMessage, kContentPart, kStreamOptions };

// A field that is known and not read.
struct ForeignField {
  FieldPlace place;
  const char* name;
  // Values that change nothing and pass, as JSON, separated by '|'; "" where none does, nullptr where any does: a hint
  // that no answer depends on. null always passes.
  const char* neutral = "";
  const char* note = "";  // of a hint: why it changes nothing; else the field to use, or where it is set
};

// All of them, for documents and tests.
std::span<const ForeignField> ForeignFields();

// Whoever sends a field wants what it says, and must not get something else instead: every field of the object that
// nobody asked for is refused, but for hints and values that change nothing.
// Returns the hints that passed.
// Requires: whatever is read of `fields` has been asked for.
// Errors:   RequestError(400) naming the field, and the one to use instead where there is one.
IgnoredFields RefuseForeignFields(const JsonFields& fields, FieldPlace place);

}  // namespace stoch::serve
