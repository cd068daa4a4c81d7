// SPDX-License-Identifier: Apache-2.0
// The text of a request's ids as they come, up to its stop strings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request/request.h"
#include "engine/request/stop_strings.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch {

class TextStream {
 public:
  // The text continues that of `prompt`: its first space is a space, and half a character at the prompt's end is
  // finished. tokenizer: null, or outlives this; without one there is no text.
  // Errors: InvalidInput for stop strings without a tokenizer.
  TextStream(const Tokenizer* tokenizer, std::span<const int32_t> prompt, const std::vector<std::string>& stop);

  // Text that is certain (no half characters, no possible start of a stop string) once `id` has come, which is no stop
  // id. Once stopped(), "" always.
  std::string Push(int32_t id);
  // The rest, at the end.
  std::string Finish();
  bool stopped() const { return stop_.stopped(); }

 private:
  std::optional<StreamDecoder> decoder_;
  StopStrings stop_;
};

// The ids that end a sequence of this request in the words of the tokenizer, added to its stop ids.
void AddTokenizerStops(const Tokenizer* tokenizer, GenerateRequest* request);

}  // namespace stoch
