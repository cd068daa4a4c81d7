// SPDX-License-Identifier: Apache-2.0
// Chat messages to a prompt in the model's own format.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "loader/tokenizer/tokenizer.h"

namespace stoch {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"; "tool" where the format writes any role (ChatML, Qwen2)
  std::string content;
};

// Formats recognised in a checkpoint's Jinja template; anything else is refused by name, never guessed.
//   kLlama2   <s>[INST] <<SYS>>\n...\n<</SYS>>\n\nuser [/INST] assistant </s>
//   kLlama3   <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>
//   kLlama31  the same after a system message that always begins with the model's knowledge date and today's date
//   kChatMl   <|im_start|>role\ncontent<|im_end|>\n
//   kQwen2, kQwen25   the same after the family's own system message where the conversation has none
//   kQwen3    ChatML without the reasoning (<think>...</think>) of turns before the last question; the reasoning of an
//             answer can be switched off
//   kMistral  <s>[INST] user [/INST]assistant</s>[INST] ..., without system messages
//   kMistralV1  <s> [INST] system\n\nuser [/INST] assistant</s> [INST] ...
//   kMistralV3  <s>[INST] user[/INST] assistant</s>[INST] ..., the system message in front of the last user's
//   kMistralTekken  the same without spaces
//   kZephyr   <|user|>\ncontent</s>\n
enum class ChatFormat {
  kLlama2,
  kLlama3,
  kLlama31,
  kChatMl,
  kQwen2,
  kQwen25,
  kQwen3,
  kMistral,
  kMistralV1,
  kMistralV3,
  kMistralTekken,
  kZephyr
};

std::string_view ChatFormatName(ChatFormat format);  // "Llama-2", ...

struct ChatOptions {
  // "26 Jul 2024". Where the template tells the model the date (kLlama31): this one; if empty, what the template says:
  // a date of its own, or (Llama-3.2's) the day the prompt is made, in UTC, so that it is the same on every machine.
  std::string date = {};
  // kQwen3: false: the answer begins with empty reasoning. As in its template, where this is not given it is true; the
  // others' templates do not know it.
  std::optional<bool> enable_thinking = {};
  bool add_generation_prompt = true;  // end where the assistant is to speak, else after the last message
};

// Which format the template is: those of Qwen and Mistral by its sha256 or its whole text, the others by what their templates have
// in common. Errors: InvalidInput if it has no template or an unknown one, or one that speaks for itself (another default
// system prompt).
ChatFormat DetectChatFormat(const Tokenizer& tokenizer);

// The date that EncodeChat writes with these options; "" where the format has none.
std::string ChatDate(const Tokenizer& tokenizer, ChatFormat format, const ChatOptions& options = {});

// The ids of a conversation, ending where the assistant is to speak. BOS included where the format has it. The same ids
// as Hugging Face's apply_chat_template(add_generation_prompt=True), but for one thing: special tokens written out in a
// message stay text, so no message can pretend to be another one.
// Errors: InvalidInput for an unknown role or an order the format does not allow (messages counted from 0), or a
//         tokenizer without the format's tokens.
// add_generation_prompt false changes nothing where the template does not know it (Mistral, the first of Llama-3).
// Source: chat_template of meta-llama/Llama-2-7b-chat-hf, Meta-Llama-3-8B-Instruct, Llama-3.1-8B-Instruct and
//         Llama-3.2-1B-Instruct; ChatML as in openai/openai-python, chatml.md; Qwen/Qwen2-7B-Instruct,
//         Qwen2.5-7B-Instruct and Qwen3-8B; mistralai/Mistral-7B-Instruct-v0.2 (older and newer), Mistral-7B-Instruct-v0.3 and
//         Mistral-Nemo-Instruct-2407; HuggingFaceH4/zephyr-7b-beta.
std::vector<int32_t> EncodeChat(const Tokenizer& tokenizer, ChatFormat format, const std::vector<ChatMessage>& messages,
                                const ChatOptions& options = {});

// What EncodeChat encodes, special tokens in their written form.
std::string RenderChat(const Tokenizer& tokenizer, ChatFormat format, const std::vector<ChatMessage>& messages,
                       const ChatOptions& options = {});

// Tokens that end the assistant's turn in this format (<|eot_id|>, <|im_end|>, </s>).
std::vector<int32_t> ChatStopIds(const Tokenizer& tokenizer, ChatFormat format);

}  // namespace stoch
