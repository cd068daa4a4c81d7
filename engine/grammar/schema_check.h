// SPDX-License-Identifier: Apache-2.0
// Refuses JSON schemas that xgrammar 0.2.8 would only half obey, so that no answer violates its schema.
#pragma once

#include <string>

namespace stoch {

// Checks every schema that the root reaches, through $ref too. Refused are: keywords that xgrammar does not know (not, if,
// dependentRequired, dependentSchemas, contains, uniqueItems, ...), constraints next to $ref, anyOf, oneOf or allOf,
// constraints without a type that they belong to, and lengths below 0; and what xgrammar would write wrongly: values and
// options that are not of the type next to them, required names without properties, names that may come twice where a number
// of properties is asked for, ranges narrower than six decimals, patterns that name characters which JSON escapes. Unknown
// keywords are annotations.
// Errors: InvalidInput: the place ("#/properties/age") and the keyword; a text that is not JSON.
void CheckSchema(const std::string& schema);

// Checks each json_schema in xgrammar's structural tag, as CheckSchema does.
void CheckSchemasOfTag(const std::string& tag);

}  // namespace stoch
