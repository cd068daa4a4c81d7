// SPDX-License-Identifier: Apache-2.0
#include "engine/request/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/math/random.h"

namespace stoch {
namespace {

TEST(StopStrings, HoldsBackWhatMayBecomeAStop) {
  StopStrings stops({"END", "\n\n"});
  EXPECT_EQ(stops.Push("a E"), "a ");
  EXPECT_EQ(stops.Push("N"), "");
  EXPECT_EQ(stops.Push("T"), "ENT");
  EXPECT_EQ(stops.Push("x\n"), "x");
  EXPECT_EQ(stops.Push("y"), "\ny");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.Push("zEN"), "z");
  EXPECT_EQ(stops.Push("D tail"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.Push("more"), "");
  EXPECT_EQ(stops.Flush(), "");
}

TEST(StopStrings, FlushGivesBackAnUnfinishedStop) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.Push("EN"), "");
  EXPECT_EQ(stops.Flush(), "EN");
  EXPECT_EQ(stops.Flush(), "");
}

TEST(StopStrings, EarliestStopWinsAndEmptyOnesAreIgnored) {
  StopStrings stops({"", "cd", "b"});
  EXPECT_EQ(stops.Push("abcd"), "a");
  EXPECT_TRUE(stops.stopped());
  StopStrings none({""});
  EXPECT_EQ(none.Push("text"), "text");
}

// However a text is cut into pieces, what comes out is the text up to the first stop.
TEST(StopStrings, EqualsSearchingTheWholeText) {
  int stopped = 0;
  for (uint64_t trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (uint64_t i = 0; i < 14; ++i) text += static_cast<char>('a' + RandomBits(7, trial, i) % 2);
    const std::vector<std::string> stops = {"aabab", "bbb", "abaab"};
    size_t found = std::string::npos;
    for (const std::string& stop : stops) found = std::min(found, text.find(stop));

    StopStrings matcher(stops);
    std::string shown;
    for (size_t begin = 0; begin < text.size() && !matcher.stopped();) {
      const size_t count = 1 + RandomBits(8, trial, begin) % 4;
      shown += matcher.Push(text.substr(begin, count));
      begin += count;
    }
    shown += matcher.Flush();
    if (found == std::string::npos) {
      EXPECT_EQ(shown, text);
    } else if (matcher.stopped()) {
      // A stop that ends earlier may be completed before one that starts earlier.
      ++stopped;
      size_t earliest_end = std::string::npos;
      for (const std::string& stop : stops) {
        const size_t at = text.find(stop);
        if (at != std::string::npos) earliest_end = std::min(earliest_end, at + stop.size());
      }
      EXPECT_LE(shown.size(), earliest_end);
      EXPECT_EQ(shown, text.substr(0, shown.size()));
      for (const std::string& stop : stops) EXPECT_EQ(shown.find(stop), std::string::npos);
    } else {
      ADD_FAILURE() << "missed a stop in " << text;
    }
  }
  EXPECT_GT(stopped, 100);
}

// What StopStrings says, by searching all of the text it holds for every stop, at every push.
class NaiveStops {
 public:
  explicit NaiveStops(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  std::string Push(std::string_view text) {
    if (stopped) return "";
    held_ += text;
    size_t found = std::string::npos;
    size_t keep = 0;
    for (const std::string& stop : stops_) {
      found = std::min(found, held_.find(stop));
      for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
        if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
      }
    }
    stopped = found != std::string::npos;
    const std::string shown = held_.substr(0, stopped ? found : held_.size() - keep);
    held_.erase(0, shown.size());
    return shown;
  }
  bool stopped = false;

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

TEST(StopStrings, EqualSearchingAgainAtEveryPush) {
  int stopped = 0;
  for (uint64_t trial = 0; trial < 3000; ++trial) {
    uint64_t draw = 0;
    const auto random = [&](uint64_t below) { return RandomBits(9, trial, draw++) % below; };
    const auto letters = [&](uint64_t count) {
      std::string text;
      for (uint64_t i = 0; i < count; ++i) text += static_cast<char>('a' + random(2));
      return text;
    };
    std::vector<std::string> stops;
    for (uint64_t i = 0; i < 3; ++i) stops.push_back(letters(3 + random(8)));
    StopStrings matcher(stops);
    NaiveStops naive(stops);
    for (int push = 0; push < 40; ++push) {
      const std::string text = letters(random(4));
      ASSERT_EQ(matcher.Push(text), naive.Push(text)) << trial;
      ASSERT_EQ(matcher.stopped(), naive.stopped) << trial;
    }
    stopped += naive.stopped ? 1 : 0;
  }
  EXPECT_GT(stopped, 1000);
  EXPECT_LT(stopped, 2999);
}

}  // namespace
}  // namespace stoch
