// SPDX-License-Identifier: Apache-2.0
// Conversions between float and the element types of checkpoints, and loads with cache policies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace stoch::cuda {

// An element of a storage type (float, __half, __nv_bfloat16) as float; exact.
__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }

// Two 16-bit elements packed in `bits` as two floats, low half first. The second parameter selects the element type.
__device__ __forceinline__ float2 ToFloat2(uint32_t bits, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}
__device__ __forceinline__ float2 ToFloat2(uint32_t bits, __nv_bfloat16) {
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}

// The 16 bytes of packed elements (4 floats or 8 16-bit elements) as floats w[0], w[1], ...; the third parameter
// selects the element type.
__device__ __forceinline__ void Expand(uint4 bits, float (&w)[4], float) {
  w[0] = __uint_as_float(bits.x);
  w[1] = __uint_as_float(bits.y);
  w[2] = __uint_as_float(bits.z);
  w[3] = __uint_as_float(bits.w);
}
template <typename T>
__device__ __forceinline__ void Expand(uint4 bits, float (&w)[8], T type) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = ToFloat2(words[i], type);
    w[2 * i] = pair.x;
    w[2 * i + 1] = pair.y;
  }
}

// The L2 cache policy for data that is read once per step: evict first. With the default policy, gigabytes of weights
// would evict the count tables, which every linear and attention reads again.
__device__ __forceinline__ uint64_t ReadOncePolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The L2 cache policy for a table that every kernel reads again: evict last.
__device__ __forceinline__ uint64_t KeepPolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Loads 16 bytes of a read-only table and keeps them in the L2 (KeepPolicy). Requires: 16-byte aligned.
__device__ __forceinline__ uint4 LoadTable(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(KeepPolicy()));
  return v;
}

// Loads 8 bytes of a read-only table and keeps them in the L2 (KeepPolicy). Requires: 8-byte aligned.
__device__ __forceinline__ uint2 LoadTablePair(const void* from) {
  uint2 v;
  asm volatile("ld.global.nc.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from), "l"(KeepPolicy()));
  return v;
}

// Loads 16 bytes of read-only data that is read once per step, such as weights. Requires: 16-byte aligned.
__device__ __forceinline__ uint4 LoadStreaming(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(ReadOncePolicy()));
  return v;
}

// Loads the byte at shared address `address` + kOffset, zero-extended. The asm is volatile so that the compiler does
// not move the load across a barrier.
template <int kOffset>
__device__ __forceinline__ uint32_t LoadSharedByte(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1+%2];" : "=r"(v) : "r"(address), "n"(kOffset));
  return v;
}

template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

}  // namespace stoch::cuda
