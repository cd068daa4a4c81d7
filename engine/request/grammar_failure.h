// SPDX-License-Identifier: Apache-2.0
// Why an answer ends whose grammar cannot go on.
#pragma once

#include "kernels/base/error.h"

namespace stoch {

// A TokenGuide cannot go on in the middle of an answer: its grammar allows no token of this vocabulary, or takes too long.
// It is the request that is refused; nothing of the engine has failed. A token that its own mask allowed and Accept refuses, and
// errors of the grammar's library, are failures of the engine.
class GrammarFailure : public InvalidInput {
 public:
  using InvalidInput::InvalidInput;
};

}  // namespace stoch
