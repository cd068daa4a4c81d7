// SPDX-License-Identifier: Apache-2.0
// The fields of a request that say what its answer has to be: response_format, guided_json and its like, structured_outputs.
#pragma once

#include <string>
#include <string_view>

#include "engine/request/grammar.h"
#include "engine/serve/format/json_fields.h"

namespace stoch::serve {

// Takes these fields out of a body: a schema is to keep the order of its properties, which is that of the answer's.
OrderedJson TakeGrammars(OrderedJson* body);
// Whether a body may have one of them, so that it has to be read with its order.
bool MentionsGrammar(std::string_view body);

struct AskedGrammar {
  GrammarSpec grammar;
  std::string field;  // that asks for it, for errors; "" for none
};

// Reads what TakeGrammars took, or what the object of `fields` has of them.
// Errors: RequestError(400) naming the field; also for two of them.
AskedGrammar ReadGrammar(const OrderedJson& taken, JsonFields& fields);

}  // namespace stoch::serve
