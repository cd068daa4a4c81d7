// SPDX-License-Identifier: Apache-2.0
// Separates the reasoning of a model, the text in front of </think>, from its answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stoch::serve {

// How a model writes it.
enum class ReasoningFormat : uint8_t {
  kNone,        // it is part of the answer
  kQwen3,       // <think>...</think> where the answer begins with it, or the prompt ends with <think>
  kDeepSeekR1,  // everything up to </think>, with or without <think>
};
inline constexpr const char* kReasoningFormats[] = {"none", "qwen3", "deepseek_r1"};  // as users name them
// Requires: one of kReasoningFormats.
ReasoningFormat ReasoningFormatNamed(std::string_view name);

// Where an answer begins.
enum class ReasoningStart : uint8_t {
  kNone,    // in the answer
  kMaybe,   // <think> begins the reasoning; anything else is the answer
  kInside,  // in the reasoning
};
// prompt: as it is rendered.
ReasoningStart ReasoningStartOf(ReasoningFormat format, std::string_view prompt);

// Splits one answer, piece by piece; the pieces depend on nothing but the text so far. Line ends around the reasoning
// and in front of the answer belong to neither.
class ReasoningSplitter {
 public:
  struct Piece {
    std::string reasoning, content;
  };

  explicit ReasoningSplitter(ReasoningStart start) : start_(start) {}
  // Text that may still be part of a tag is kept for the next call.
  Piece Push(std::string_view text);
  Piece Finish();

 private:
  void Move(bool last, Piece* piece);

  enum class At : uint8_t { kBegin, kReasoning, kAfter, kContent };
  const ReasoningStart start_;
  std::optional<At> at_;
  std::string held_;    // not given out
  bool begun_ = false;  // some of the reasoning has been
};

}  // namespace stoch::serve
