// SPDX-License-Identifier: Apache-2.0
// Unicode normalization, behind one wrapper (utf8proc).
#pragma once

#include <string>
#include <string_view>

namespace stoch {

// The text in normalization form C, as tokenizer.json's NFC step makes it. Takes O(n log n) for any text: runs of
// combining marks are sorted here, since utf8proc takes n^2 for them.
// Requires: well-formed UTF-8.
// Source:   Unicode Standard Annex 15.
std::string ToNfc(std::string_view text);

}  // namespace stoch
