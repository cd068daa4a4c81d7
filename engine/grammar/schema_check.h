// SPDX-License-Identifier: Apache-2.0
// Refuses JSON schemas with constraints that xgrammar 0.2.8 would drop silently, so that no answer violates its schema.
#pragma once

#include <string>

namespace stoch {

// Checks every schema that the root reaches, through $ref too. Refused are: keywords that xgrammar does not know (not, if,
// dependentRequired, dependentSchemas, contains, uniqueItems, ...), constraints next to $ref, anyOf, oneOf or allOf,
// constraints without a type that they belong to, and lengths below 0. Unknown keywords are annotations.
// Errors: InvalidInput: the place ("#/properties/age") and the keyword; a text that is not JSON.
void CheckSchema(const std::string& schema);

// The same for each json_schema in xgrammar's structural tag.
void CheckSchemasOfTag(const std::string& tag);

}  // namespace stoch
