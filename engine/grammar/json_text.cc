// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/json_text.h"

#include <algorithm>
#include <string>

#include "kernels/logit_queries.h"

namespace stoch {

namespace {

// Where a string goes on after this byte of it.
JsonText::At AfterInside(unsigned char byte) {
  switch (byte) {
    case '"': return JsonText::At::kOutside;
    case '\\': return JsonText::At::kEscape;
    case 0xE0: return JsonText::At::kAfterE0;
    case 0xED: return JsonText::At::kAfterED;
    case 0xF0: return JsonText::At::kAfterF0;
    case 0xF4: return JsonText::At::kAfterF4;
    default: return JsonText::At::kInside;
  }
}

}  // namespace

bool JsonText::PushByte(unsigned char byte) {
  const At before = at_;
  at_ = At::kInside;
  switch (before) {
    case At::kOutside: at_ = byte == '"' ? At::kInside : At::kOutside; return true;
    case At::kInside: at_ = AfterInside(byte); return byte >= ' ' && byte < 0xF5;
    case At::kEscape: at_ = byte == 'u' ? At::kUnicode : At::kInside; return byte >= ' ';
    case At::kUnicode: at_ = byte == 'd' || byte == 'D' ? At::kSurrogate : At::kInside; return byte >= ' ';
    case At::kSurrogate: return byte >= '0' && byte <= '7';
    case At::kAfterE0: return byte >= 0xA0;
    case At::kAfterED: return byte < 0xA0;
    case At::kAfterF0: return byte >= 0x90;
    case At::kAfterF4: return byte < 0x90;
  }
  return false;
}

bool JsonText::Push(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [this](char byte) { return PushByte(static_cast<unsigned char>(byte)); });
}

JsonTextMasks::JsonTextMasks(const Tokenizer& tokenizer, int64_t vocab_size) {
  for (std::vector<uint32_t>& mask : allowed_) mask.assign(static_cast<size_t>(TokenMaskWords(vocab_size)), ~0u);
  const int64_t known = std::min<int64_t>(vocab_size, tokenizer.vocab_size());
  for (int32_t id = 0; id < known; ++id) {
    const std::string bytes = tokenizer.TokenBytes(id);
    for (size_t place = 0; place < JsonText::kPlaces; ++place) {
      if (JsonText(static_cast<JsonText::At>(place)).Push(bytes)) continue;
      allowed_[place][static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
    }
  }
}

void JsonTextMasks::Restrict(JsonText::At at, std::span<uint32_t> mask) const {
  const std::vector<uint32_t>& allowed = allowed_[static_cast<size_t>(at)];
  for (size_t word = 0; word < mask.size(); ++word) mask[word] &= allowed[word];
}

}  // namespace stoch
