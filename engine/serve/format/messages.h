// SPDX-License-Identifier: Apache-2.0
// The conversation of a chat request, as chat templates read it.
#pragma once

#include "engine/chat/chat.h"
#include "engine/serve/format/json_fields.h"

namespace stoch::serve {

// Takes "messages", "tools", "documents" and "chat_template_kwargs" out of a body: those that are read in the order of
// their members.
OrderedJson TakeConversation(OrderedJson* body);

// taken: by TakeConversation, and read here. fields: of the rest of that body.
//   messages  role and content of each, text parts joined where the template reads strings; null of an assistant or a tool
//             is "". Role developer is system where the template does not know it. The arguments of tool calls are objects.
//   tools     with tool_choice "none" they are not told
// Errors: RequestError(400) naming the field, also where the template does not read what a field says.
ChatRequest ReadConversation(OrderedJson* taken, JsonFields& fields, const Chat& chat);

// Checks the messages of a request to a model without chat. Errors: as above.
void CheckMessages(OrderedJson* taken, JsonFields& fields);

// How much the messages of a conversation say.
size_t ContentBytes(const ChatRequest& conversation);

}  // namespace stoch::serve
