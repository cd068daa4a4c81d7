// SPDX-License-Identifier: Apache-2.0
// The registers of count_vectors.h on x86. Tag: a type without linkage of the file that includes this.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/simd/count_vectors.h"

namespace stoch::cpu {

template <typename Tag>
struct Register16 {
  static constexpr int kBytes = 16;
  using Bytes = uint8_t __attribute__((vector_size(kBytes)));
  using Words = uint16_t __attribute__((vector_size(kBytes)));
  __attribute__((always_inline)) static inline __m128i Piece(const uint8_t* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  }
  __attribute__((always_inline)) static inline Bytes Gather(const uint8_t* const* rows, int64_t at) {
    return reinterpret_cast<Bytes>(Piece(rows[0] + at));
  }
  __attribute__((always_inline)) static inline void Settle(Words& v) { asm("" : "+x"(v)); }
};

template <typename Tag>
struct Register32 {
  static constexpr int kBytes = 32;
  using Bytes = uint8_t __attribute__((vector_size(kBytes)));
  using Words = uint16_t __attribute__((vector_size(kBytes)));
  __attribute__((always_inline)) static inline __m256i Pieces(const uint8_t* const* rows, int64_t at) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(Register16<Tag>::Piece(rows[0] + at)),
                                   Register16<Tag>::Piece(rows[1] + at), 1);
  }
  __attribute__((always_inline)) static inline Bytes Gather(const uint8_t* const* rows, int64_t at) {
    return reinterpret_cast<Bytes>(Pieces(rows, at));
  }
  __attribute__((always_inline)) static inline void Settle(Words& v) { asm("" : "+x"(v)); }
};

#if defined(__AVX512BW__)
template <typename Tag>
struct Register64 {
  static constexpr int kBytes = 64;
  using Bytes = uint8_t __attribute__((vector_size(kBytes)));
  using Words = uint16_t __attribute__((vector_size(kBytes)));
  __attribute__((always_inline)) static inline Bytes Gather(const uint8_t* const* rows, int64_t at) {
    return reinterpret_cast<Bytes>(_mm512_inserti64x4(_mm512_castsi256_si512(Register32<Tag>::Pieces(rows, at)),
                                                      Register32<Tag>::Pieces(rows + 2, at), 1));
  }
  __attribute__((always_inline)) static inline void Settle(Words& v) { asm("" : "+v"(v)); }
};
#endif

}  // namespace stoch::cpu
