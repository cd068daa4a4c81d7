// SPDX-License-Identifier: Apache-2.0
// The conversation of a chat request.
#pragma once

#include <string>
#include <vector>

#include "engine/serve/format/json_fields.h"
#include "loader/tokenizer/chat/chat_template.h"

namespace stoch::serve {

// "messages": role and content of each, text parts joined. Role developer is system; an assistant or a tool may have
// null as content. Errors: RequestError(400) naming the field.
std::vector<ChatMessage> ReadMessages(JsonFields& fields);

// "chat_template_kwargs": the date (else default_date), and whether the answer may reason.
// Errors: RequestError(400) naming the field.
ChatOptions ReadChatOptions(JsonFields& fields, const std::string& default_date);

}  // namespace stoch::serve
