// SPDX-License-Identifier: Apache-2.0
#include "loader/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <new>

#include "kernels/base/check.h"

namespace stoch {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();

  Context() {
    if (md == nullptr) throw std::bad_alloc();
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  STOCH_CHECK(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;

void Sha256::Add(std::span<const std::byte> bytes) {
  STOCH_CHECK(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Hex() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  STOCH_CHECK(EVP_DigestFinal_ex(context_->md, digest.data(), &size) == 1);
  std::string hex;
  for (unsigned i = 0; i < size; ++i) {
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

std::string Sha256Hex(std::string_view text) {
  Sha256 hash;
  hash.Add(text);
  return hash.Hex();
}

}  // namespace stoch
