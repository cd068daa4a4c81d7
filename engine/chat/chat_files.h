// SPDX-License-Identifier: Apache-2.0
// Files of this folder inside of the program, which then needs no place to find them. Internal to this folder.
#pragma once

#include <span>
#include <string_view>

namespace stoch {

struct ChatFile {
  std::string_view name;  // without folder and ending
  std::string_view text;
};

extern const std::string_view kRenderChatScript;  // render_chat.py
std::span<const ChatFile> ChatTemplateFiles();    // templates/*.jinja, by name

}  // namespace stoch
