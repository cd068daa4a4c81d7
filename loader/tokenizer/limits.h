// SPDX-License-Identifier: Apache-2.0
// Bounds on what a tokenizer file or a text may ask for; real ones stay far below.
#pragma once

#include <cstdint>

namespace stoch {

inline constexpr int64_t kMaxTokenizerFileBytes = int64_t{64} << 20;  // Llama-3's tokenizer.json has 17 MB
inline constexpr int64_t kMaxSettingsFileBytes = int64_t{4} << 20;
inline constexpr int32_t kMaxTokenId = (1 << 20) - 1;
inline constexpr int64_t kMaxTextBytes = int64_t{1} << 28;  // one call of Encode

// Steps of a normalizer or decoder; Llama-2's have two and four. Every Replace can make a text longer, so what all
// steps make of one is bounded too: real ones put in a character or swap one for another.
inline constexpr size_t kMaxReplaceSteps = 32;
constexpr size_t MaxReplacedBytes(size_t text_bytes) { return 16 * text_bytes + (size_t{64} << 10); }

}  // namespace stoch
