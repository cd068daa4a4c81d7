// Chat messages to a prompt in the model's own format.
#pragma once

#include <string>
#include <vector>

#include "loader/tokenizer.h"

namespace stoch {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

// Formats recognised in a checkpoint's Jinja template; anything else is refused by name, never guessed.
enum class ChatFormat { kLlama2, kLlama3, kChatMl };

// What:   which format the template is. Errors: InvalidInput if it has no template or an unknown one.
ChatFormat DetectChatFormat(const Tokenizer& tokenizer);

// What:   the ids of a conversation, ending where the assistant is to speak. BOS included where the format has it.
// Errors: InvalidInput for an unknown role or an order the format does not allow.
std::vector<int32_t> EncodeChat(const Tokenizer& tokenizer, ChatFormat format,
                                const std::vector<ChatMessage>& messages);

// Tokens that end the assistant's turn in this format (<|eot_id|>, <|im_end|>, </s>).
std::vector<int32_t> ChatStopIds(const Tokenizer& tokenizer, ChatFormat format);

}  // namespace stoch
