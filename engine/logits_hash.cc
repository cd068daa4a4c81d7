// SPDX-License-Identifier: Apache-2.0
#include "engine/logits_hash.h"

#include <openssl/evp.h>

#include <bit>

#include "kernels/base/check.h"

namespace stoch {

static_assert(std::endian::native == std::endian::little, "the hash is defined over little-endian floats");

struct LogitsHash::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(md); }
};

LogitsHash::LogitsHash() : context_(std::make_unique<Context>()) {
  STOCH_CHECK(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1);
}
LogitsHash::~LogitsHash() = default;
LogitsHash::LogitsHash(LogitsHash&&) noexcept = default;
LogitsHash& LogitsHash::operator=(LogitsHash&&) noexcept = default;

void LogitsHash::Add(std::span<const float> logits) {
  STOCH_CHECK(EVP_DigestUpdate(context_->md, logits.data(), logits.size_bytes()) == 1);
}

std::string LogitsHash::Hex() const {
  Context copy;  // finishing a digest ends it, and more rows may come
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  STOCH_CHECK(EVP_MD_CTX_copy_ex(copy.md, context_->md) == 1);
  STOCH_CHECK(EVP_DigestFinal_ex(copy.md, digest, &size) == 1);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

}  // namespace stoch
