// SPDX-License-Identifier: Apache-2.0
// The JSON of an answer that is sent once it is complete, in pieces: never in memory as a whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/serve/format/completion_response.h"

namespace stoch::serve {

class WholeAnswer {
 public:
  // Takes the text and the tokens of the choices, which outlive this, as it goes. alternatives: of each token; -1 = no
  // logprobs.
  WholeAnswer(ResponseFrame frame, std::vector<AnswerChoice*> choices, int alternatives, const Usage& usage);
  // The next piece, some hundred kilobytes at most besides a choice's text; "" once there is none.
  std::string Next();

 private:
  enum class At : uint8_t { kHead, kChoice, kLists, kChoiceEnd, kTail, kEnd };
  std::string ChoiceBegin();
  std::string ListPiece();
  std::string ChoiceEnd();

  const ResponseFrame frame_;
  const std::vector<AnswerChoice*> choices_;
  const int alternatives_;
  const Usage usage_;
  At at_ = At::kHead;
  size_t choice_ = 0;
  size_t list_ = 0;
  size_t token_ = 0;
  bool any_ = false;  // entries of this list so far
};

}  // namespace stoch::serve
