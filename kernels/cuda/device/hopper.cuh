// SPDX-License-Identifier: Apache-2.0
// PTX of sm_90a that wgmma kernels need besides the products (wgmma.cuh): fences and waits of wgmma, mbarriers, bulk
// copies, operand descriptors.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/wgmma.cuh"

namespace stoch::cuda {

__device__ __forceinline__ void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
// Makes the compiler finish computing the A operand at this point. If instructions that compute it moved between a
// wgmma fence and its commit, ptxas would serialize every wgmma of the kernel (warning C7513).
__device__ __forceinline__ void Pin(uint32_t (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}
__device__ __forceinline__ void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
// Waits until at most kPending committed groups of wgmma are unfinished. If kPending is 0, the accumulators d pass
// through an empty asm so that the compiler reads none of them before the wait.
template <int kPending, int kRegs>
__device__ __forceinline__ void WgmmaWait(int32_t (&d)[kRegs]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
  if constexpr (kPending == 0) {
#pragma unroll
    for (int i = 0; i < kRegs; ++i) asm volatile("" : "+r"(d[i])::"memory");
  }
}

// Proxy fence: makes this thread's writes to shared memory visible to wgmma and bulk copies that are issued after a
// following barrier.
__device__ __forceinline__ void FenceAsyncProxy() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

// The shared address of p in a register, opaque to the compiler, which would otherwise recompute the address from
// special registers at each use.
__device__ __forceinline__ uint32_t SharedAddressInRegister(const void* p) {
  uint32_t r;
  asm volatile("mov.u32 %0, %1;\n" : "=r"(r) : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(p))));
  return r;
}
// Returns `value`, which must be equal in all lanes, in a form that the compiler may keep in a uniform register.
__device__ __forceinline__ uint32_t Uniform(uint32_t value) { return __shfl_sync(~0u, value, 0); }
// Hides `value` from the compiler, so that expressions of it are recomputed at each use instead of kept in registers.
__device__ __forceinline__ int Opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ float LoadShared(uint32_t address) {
  float r;
  asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(r) : "r"(address));
  return r;
}
__device__ __forceinline__ float2 LoadShared2(uint32_t address) {
  float2 r;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];\n" : "=f"(r.x), "=f"(r.y) : "r"(address));
  return r;
}

// Named barriers between warpgroups. threads: number of threads that arrive plus number of threads that wait.
__device__ __forceinline__ void NamedArrive(uint32_t id, int threads, bool condition) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p bar.arrive %0, %1;\n}\n" ::"r"(id), "r"(threads),
               "r"(static_cast<int>(condition))
               : "memory");
}
__device__ __forceinline__ void NamedWait(uint32_t id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals));
}
// Makes initialized mbarriers visible to other threads, other blocks of the cluster and bulk copies. Called by the
// thread that initialized the barriers; a block or cluster barrier must follow.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ __forceinline__ void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives at the mbarrier if `condition`, which is a predicate instead of a branch (reason: BarrierArriveRemote).
__device__ __forceinline__ void BarrierArrive(uint32_t barrier, bool condition) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(barrier),
      "r"(static_cast<int>(condition))
      : "memory");
}
// The cluster address, in block `rank`, of the place at shared `address`; an argument for BarrierArriveRemote.
__device__ __forceinline__ uint32_t MapToCluster(uint32_t address, uint32_t rank) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}
// Arrives at the mbarrier at cluster address `address` + kOffset if `condition`. Releases at block scope only: the
// arrival announces finished reads of shared memory, and a release at cluster scope costs a membar.gpu (the kernel then
// took 1.3 times as long). The condition is a predicate instead of a branch, because branches while a wgmma is in
// flight make ptxas serialize wgmma (C7513).
template <int kOffset>
__device__ __forceinline__ void BarrierArriveRemote(uint32_t address, bool condition) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"
      "@p mbarrier.arrive.shared::cluster.b64 _, [%0+%1];\n}\n" ::"r"(address),
      "n"(kOffset), "r"(static_cast<int>(condition))
      : "memory");
}
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\nbra again;\nfinished:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Bulk copy with multicast: writes `bytes` bytes to shared offset `to` in every block of the cluster whose bit in
// `mask` is set, and counts the bytes at the mbarrier at offset `barrier` of each such block.
__device__ __forceinline__ void BulkCopyToCluster(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier,
                                                  uint16_t mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;\n" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void BulkCopy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// Prefetches `bytes` bytes into the L2. Requires: `from` and `bytes` are multiples of 16.
__device__ __forceinline__ void BulkPrefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

// Low word of the wgmma descriptor of a B operand without swizzle. 8 columns x 16 bytes form a 128-byte core matrix;
// core matrices that are adjacent along the columns follow each other, those adjacent along the inner dimension are
// kUnitBytes apart. For the next operand, the distance in units of 16 bytes may be added to the low word.
template <int kUnitBytes>
__device__ __forceinline__ uint32_t DescriptorLow(uint32_t address) {
  // The mask drops the higher bits, which hold the block's rank in the cluster.
  return ((address & 0x3ffff) >> 4) | (static_cast<uint32_t>(kUnitBytes >> 4) << 16);
}
__device__ __forceinline__ uint64_t Descriptor(uint32_t low) {
  uint64_t r;
  asm("mov.b64 %0, {%1, %2};\n" : "=l"(r) : "r"(low), "n"(128 >> 4));
  return r;
}
// The whole 64-bit descriptor, to which the caller adds the distance of each following operand. Takes two instructions
// per operand instead of three, but more registers.
__device__ __forceinline__ uint64_t DescriptorToAddTo(uint32_t low) { return (uint64_t{128 >> 4} << 32) + low; }

}  // namespace stoch::cuda
