// SPDX-License-Identifier: Apache-2.0
#include "engine/request/stop_strings.h"

#include <algorithm>
#include <utility>

namespace stoch {

StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    if (text.empty()) continue;
    Stop stop;
    stop.text = std::move(text);
    stop.border.assign(stop.text.size(), 0);
    for (size_t n = 1; n < stop.text.size(); ++n) {
      uint32_t border = stop.border[n - 1];
      while (border > 0 && stop.text[border] != stop.text[n]) border = stop.border[border - 1];
      stop.border[n] = border + (stop.text[border] == stop.text[n] ? 1 : 0);
    }
    stops_.push_back(std::move(stop));
  }
}

bool StopStrings::Advance(Stop& stop, char c) {
  while (stop.matched > 0 && stop.text[stop.matched] != c) stop.matched = stop.border[stop.matched - 1];
  if (stop.text[stop.matched] == c) ++stop.matched;
  return stop.matched == stop.text.size();
}

std::string StopStrings::Push(std::string_view text) {
  if (stopped_) return "";
  const size_t before = held_.size();
  held_ += text;
  // The string that begins first counts, though another may end before it does.
  size_t found = std::string::npos;
  size_t keep = 0;
  for (Stop& stop : stops_) {
    size_t at = before;
    while (at < held_.size() && !Advance(stop, held_[at])) ++at;
    if (at < held_.size()) {
      found = std::min(found, at + 1 - stop.text.size());
    } else {
      keep = std::max<size_t>(keep, stop.matched);
    }
  }
  if (found != std::string::npos) {
    stopped_ = true;
    std::string shown = held_.substr(0, found);
    held_.clear();
    return shown;
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::Flush() {
  for (Stop& stop : stops_) stop.matched = 0;
  return std::exchange(held_, {});
}

}  // namespace stoch
