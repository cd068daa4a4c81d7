// Finds stop strings in streamed text without ever letting a part of one through.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stoch {

// Feed text with Push; it returns what is certain not to belong to a stop string. Empty stop strings are ignored.
class StopStrings {
 public:
  StopStrings() = default;
  explicit StopStrings(std::vector<std::string> stops);

  // What: text that can be shown now. Once stopped(), "" always: the earliest stop string and all after it is dropped.
  std::string Push(std::string_view text);
  // What: what was held back, at the end of the stream.
  std::string Flush();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace stoch
