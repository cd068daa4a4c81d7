// SPDX-License-Identifier: Apache-2.0
// Why an answer ends whose grammar cannot go on.
#pragma once

#include "kernels/base/error.h"

namespace stoch {

// What a TokenGuide meets in the middle of an answer: its grammar cannot go on, with this vocabulary or in the time that it has.
// It is the request that is refused; nothing of the engine has failed.
class GrammarFailure : public InvalidInput {
 public:
  using InvalidInput::InvalidInput;
};

}  // namespace stoch
