// SPDX-License-Identifier: Apache-2.0
// Fields of other servers, and of later APIs, that change what is answered.
#pragma once

#include "engine/serve/format/json_fields.h"

namespace stoch::serve {

// Whoever sends one of them with a value that means something wants what this server does not do, and must not get
// something else instead. Values that change nothing pass.
// Errors: RequestError(400) naming the field.
void RefuseForeignFields(JsonFields& fields, bool chat);

}  // namespace stoch::serve
