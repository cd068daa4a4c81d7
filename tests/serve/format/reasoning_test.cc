// SPDX-License-Identifier: Apache-2.0
// Reasoning apart from answers: the same whatever pieces a text comes in.
#include "engine/serve/format/reasoning.h"

#include <gtest/gtest.h>

namespace stoch::test {
namespace {

using serve::ReasoningFormat;
using serve::ReasoningSplitter;
using serve::ReasoningStart;

std::string Split(ReasoningStart start, std::string_view text, size_t piece) {
  ReasoningSplitter splitter(start);
  std::string reasoning, content;
  const auto add = [&](const ReasoningSplitter::Piece& part) {
    EXPECT_TRUE(part.reasoning.empty() || content.empty()) << "reasoning comes first";
    reasoning += part.reasoning;
    content += part.content;
  };
  for (size_t at = 0; at < text.size(); at += piece) add(splitter.Push(text.substr(at, piece)));
  add(splitter.Finish());
  return reasoning + "|" + content;
}

TEST(Reasoning, IsSplitAlikeInAnyPieces) {
  constexpr auto kMaybe = ReasoningStart::kMaybe, kInside = ReasoningStart::kInside, kNone = ReasoningStart::kNone;
  const struct {
    ReasoningStart start;
    std::string_view text, expected;
  } cases[] = {
      {kMaybe, "<think>\nwhy\n\nnot\n</think>\n\nyes\n", "why\n\nnot|yes\n"},
      {kMaybe, "\n<think>a</think>b</think>c", "a|b</think>c"},
      {kMaybe, "yes <think>a</think>", "|yes <think>a</think>"},
      {kMaybe, "<thin", "|<thin"},
      {kMaybe, "", "|"},
      {kMaybe, "<think>never ends\n", "never ends|"},
      {kMaybe, "<think>a </thin </think>b", "a </thin |b"},
      {kInside, "a\n</think>\n\nb", "a|b"},
      {kInside, "<think>a</think>b", "a|b"},
      {kInside, "a < b\n\nc", "a < b\n\nc|"},
      {kInside, "</think>b", "|b"},
      {kNone, "<think>a</think>b", "|<think>a</think>b"},
  };
  for (const auto& [start, text, expected] : cases) {
    for (size_t piece = 1; piece <= text.size() + 1; ++piece) {
      EXPECT_EQ(Split(start, text, piece), expected) << text << " in pieces of " << piece;
    }
  }
}

// Text is given out as soon as it is no part of a tag.
TEST(Reasoning, WaitsForTagsAlone) {
  ReasoningSplitter splitter(ReasoningStart::kMaybe);
  EXPECT_EQ(splitter.Push("<think>").reasoning, "");
  EXPECT_EQ(splitter.Push("so ").reasoning, "so ");
  EXPECT_EQ(splitter.Push("it is</th").reasoning, "it is");
  EXPECT_EQ(splitter.Push("at").reasoning, "</that");
  EXPECT_EQ(splitter.Push("</think>y").content, "y");
  EXPECT_EQ(splitter.Push("es").content, "es");
}

TEST(Reasoning, BeginsAsPromptAndFormatSay) {
  const auto start = [](ReasoningFormat format, std::string_view prompt) { return ReasoningStartOf(format, prompt); };
  EXPECT_EQ(start(ReasoningFormat::kNone, "<think>\n"), ReasoningStart::kNone);
  EXPECT_EQ(start(ReasoningFormat::kQwen3, "<|im_start|>assistant\n"), ReasoningStart::kMaybe);
  EXPECT_EQ(start(ReasoningFormat::kQwen3, "<|im_start|>assistant\n<think>\n"), ReasoningStart::kInside);
  EXPECT_EQ(start(ReasoningFormat::kQwen3, "<think>\n\n</think>\n\n"), ReasoningStart::kNone);
  EXPECT_EQ(start(ReasoningFormat::kDeepSeekR1, "a"), ReasoningStart::kInside);
  EXPECT_EQ(start(ReasoningFormat::kDeepSeekR1, "<think></think>"), ReasoningStart::kNone);
  EXPECT_EQ(serve::ReasoningFormatNamed("deepseek_r1"), ReasoningFormat::kDeepSeekR1);
}

}  // namespace
}  // namespace stoch::test
