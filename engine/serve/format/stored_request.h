// SPDX-License-Identifier: Apache-2.0
// A completion request as bytes, with what its answers say besides tokens: enough to answer it in another process.
#pragma once

#include <string>

#include "engine/request/answer_log.h"
#include "engine/serve/format/completion_request.h"
#include "engine/serve/format/completion_response.h"

namespace stoch::serve {

struct StoredRequest {
  CompletionRequest request;
  ResponseFrame frame;
};

// Token ids and what was drawn or looked up (seed, date); text only where it is echoed.
std::string Store(const StoredRequest& stored);
// Errors: InvalidInput for bytes that Store did not make.
StoredRequest Restore(const std::string& bytes);

// That an answer can go on from these: bytes that came from a file say nothing that a checked request would not, and
// updates are of its choices and of the model.
// Errors: InvalidInput naming the first thing that is not so.
void CheckKept(const StoredRequest& stored, const AnswerLog::Kept& kept, const ModelFacts& model);

}  // namespace stoch::serve
