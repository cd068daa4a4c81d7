// JSON of hostile files: nlohmann-json with limits and one-sentence errors.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace stoch {

// What:   the document. Nesting deeper than max_depth and a key given twice in one object are refused.
// Errors: InvalidInput naming `where`, the byte where the text stops being JSON, or the key.
nlohmann::json ParseBoundedJson(std::string_view text, const std::string& where, int max_depth = 32);

// "a string", "an array", ... for messages.
std::string_view JsonTypeName(const nlohmann::json& value);

}  // namespace stoch
