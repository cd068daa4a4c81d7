// SPDX-License-Identifier: Apache-2.0
// Conversations to token ids, as the chat template of a checkpoint writes them: the one path of server, command line and
// Python.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/chat_renderer.h"
#include "engine/chat/special_text.h"
#include "loader/json_types.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch {

struct ChatSettings {
  std::string chat_template;         // a file, or one of ChatTemplateNames(); "": the tokenizer's own
  bool unsafe = false;               // renders without seccomp, where the system has none
  std::vector<std::string> pythons;  // interpreters, the first one with jinja2 is used; none: DefaultPythons()
  std::string date;                  // "26 Jul 2024", of templates that write one; "": as the template says
};

// A conversation as templates read it.
struct ChatRequest {
  OrderedJson messages = OrderedJson::array();
  OrderedJson tools = nullptr;                 // null: none
  OrderedJson documents = nullptr;             // null: none
  OrderedJson kwargs = OrderedJson::object();  // further variables of the template
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the last message is not ended: the answer goes on with it
};

struct RenderedChat {
  std::string text;
  std::string mark;  // in names of special tokens that messages write (special_text.h)
  std::string date;  // that the template was told, "" where it writes none; the same one gives the same text
};

// Immutable but for its helper process. Threads: safe; conversations are rendered one at a time.
class Chat {
 public:
  // Starts the helper and gives it the template. The tokenizer outlives this.
  // Errors: InvalidInput: no template, or one that cannot be read; no jinja2; a system that cannot confine the helper.
  Chat(const Tokenizer& tokenizer, const ChatSettings& settings);

  // Errors: InvalidInput: what the template refuses, in its words; a template that fails or takes more than a second.
  RenderedChat Render(ChatRequest request) const;
  // The ids of Hugging Face's apply_chat_template, but that special tokens in messages are text.
  std::vector<int32_t> Encode(const RenderedChat& rendered) const;
  std::vector<int32_t> Encode(ChatRequest request) const { return Encode(Render(std::move(request))); }
  static std::string Text(const RenderedChat& rendered);  // as it is written, without marks

  // Tokens that end an answer: EOS, and those that end a turn in the formats of the field.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  const std::string& source() const { return source_; }
  const std::string& sha256() const { return sha256_; }  // of the source
  // Whether the template has this word, such as the name of a variable.
  bool Mentions(std::string_view word) const { return source_.find(word) != std::string::npos; }
  // Whether the template reads the content of messages as a list of parts, and nothing of a string.
  bool wants_parts() const { return wants_parts_; }

 private:
  bool Shows(const OrderedJson& content) const;
  std::string Date(const OrderedJson& kwargs) const;

  const Tokenizer& tokenizer_;
  const std::string date_;
  const std::string source_, sha256_;
  const SpecialText specials_;
  const std::unique_ptr<ChatRenderer> renderer_;
  std::vector<int32_t> stop_ids_;
  bool wants_parts_ = false;
};

// Null where there is no chat, and why. A template that settings name has to be there.
// Errors: InvalidInput where settings name one and it cannot be used.
std::unique_ptr<Chat> OpenChat(const Tokenizer& tokenizer, const ChatSettings& settings, std::string* why);

// The names that ChatSettings::chat_template takes besides files: "chatml, llama-3, ...".
std::string ChatTemplateNames();
// STOCH_CHAT_PYTHON, /usr/bin/python3, and python3 of PATH.
std::vector<std::string> DefaultPythons();

}  // namespace stoch
