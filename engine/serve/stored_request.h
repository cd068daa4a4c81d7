// SPDX-License-Identifier: Apache-2.0
// A completion request as bytes, with what its answers say besides tokens: enough to answer it in another process.
#pragma once

#include <string>

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

}  // namespace stoch::serve
