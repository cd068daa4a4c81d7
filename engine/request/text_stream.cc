// SPDX-License-Identifier: Apache-2.0
#include "engine/request/text_stream.h"

#include "kernels/base/error.h"

namespace stoch {

TextStream::TextStream(const Tokenizer* tokenizer, std::span<const int32_t> prompt,
                       const std::vector<std::string>& stop)
    : stop_(stop) {
  if (tokenizer == nullptr) {
    if (!stop.empty()) throw InvalidInput("stop strings need a tokenizer, and this model has none");
    return;
  }
  decoder_.emplace(*tokenizer);
  for (const int32_t id : prompt) decoder_->Push(id);
}

std::string TextStream::Push(int32_t id) { return decoder_ ? stop_.Push(decoder_->Push(id)) : ""; }

std::string TextStream::Finish() {
  if (!decoder_ || stop_.stopped()) return "";
  std::string text = stop_.Push(decoder_->Flush());
  return text + stop_.Flush();
}

void AddTokenizerStops(const Tokenizer* tokenizer, GenerateRequest* request) {
  if (tokenizer == nullptr || request->ignore_eos) return;
  const std::vector<int32_t> eos = tokenizer->eos_ids();
  request->stop_ids.insert(request->stop_ids.end(), eos.begin(), eos.end());
}

}  // namespace stoch
