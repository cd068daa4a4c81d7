// SPDX-License-Identifier: Apache-2.0
// Lanes of the table kernels: look-ups in shared memory, and sums on the tensor cores.
#pragma once

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/sc/table/weights.cuh"

namespace stoch::cuda::batch_table {

// d += A B over bytes.
__device__ __forceinline__ void MultiplyAdd(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MmaBytes(d, a, b[0], b[1]);
}

// d += the bits of each row's words that column lane / 4's mask has. Both words of `mask` are the same.
__device__ __forceinline__ void CountAdd(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&mask)[2]) {
  MmaBits(d, a, mask[0], mask[1]);
}

// Keeps a value in its register: the compiler would rather compute a lane's constants again for every unit.
__device__ __forceinline__ void Pin(uint32_t& value) { asm volatile("" : "+r"(value)); }

template <int kWords>
__device__ __forceinline__ void LookUp(uint32_t address, int plane_offset, uint32_t (&v)[kWords]) {
  address += static_cast<uint32_t>(plane_offset);
  if constexpr (kWords == 1) {
    asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(v[0]) : "r"(address));
  } else {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(v[0]), "=r"(v[1]) : "r"(address));
  }
}

// A B operand whose two words are the same, read from where both lie: a compiler that sees that they are the same keeps
// one, and makes a pair of registers of it for every product.
__device__ __forceinline__ void LoadTwice(const uint2& from, uint32_t (&to)[2]) { LookUp(SharedAddress(&from), 0, to); }

// A table of entries of kEntryBytes for every code, negative ones included: 128 bytes, all banks, hold those of one
// code in kSlots dimensions, a plane.
//
// Lanes of a row hold 8 dimensions each of a pair of tiles (Codes). They look up the bytes of a word in an order that
// depends on their row, so that all that shared memory serves at a time are in different banks. 8 bytes: 16 lanes, four
// rows, start with byte row % 4. 4 bytes: 32 lanes, eight rows, of which the last four start with the second word.
template <int kEntryBytes_, int kDims>
struct TableLayout {
  static constexpr int kEntryBytes = kEntryBytes_;
  static_assert(kEntryBytes == 4 || kEntryBytes == 8);
  static constexpr int kLevelBytes = 128;
  static constexpr int kSlots = kLevelBytes / kEntryBytes;
  static constexpr int kPlanes = kDims / kSlots;
  static constexpr int kNegative = 128 * kLevelBytes;  // from a level's entries to those of its negative
  static constexpr int kPlaneBytes = 2 * kNegative;
  static constexpr int kBytes = kPlanes * kPlaneBytes;

  // Row of byte j of a lane's word k of a pair, and the dimension of a slot (Codes).
  static __device__ __forceinline__ int Slot(int k, int lane, int j) {
    return kEntryBytes == 4 ? lane % 4 * 8 + k * 4 + j : lane % 4 * 4 + j;
  }
  static __device__ __forceinline__ int Dim(int plane, int slot) {
    if constexpr (kEntryBytes == 4) return plane * 32 + slot;
    return plane / 2 * 32 + slot / 4 * 8 + plane % 2 * 4 + slot % 4;
  }
};

// How a lane finds entries: byte (i + its row) % 4 of a word is looked up i-th.
template <typename Layout>
class LookupPlaces {
 public:
  explicit __device__ __forceinline__ LookupPlaces(const uint8_t* table) {
    const uint32_t lane = threadIdx.x % kWarp;
    const auto base = SharedAddress(table);
    second_first_ = lane >= 16;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t byte = (i + lane / 4) % 4;
      level_of_[i] = static_cast<uint32_t>(Layout::kLevelBytes) << (8 * byte);
      Pin(level_of_[i]);
#pragma unroll
      for (uint32_t q = 0; q < kOrders; ++q) {
        const auto word = static_cast<int>(q ^ (kOrders == 2 ? lane / 16 : 0));
        const int slot = Layout::Slot(word, static_cast<int>(lane), static_cast<int>(byte));
        address_[i][q] = base + static_cast<uint32_t>(slot * Layout::kEntryBytes);
        Pin(address_[i][q]);
      }
    }
  }

  // Calls add(g, a) with all that a pair of tiles looks up in entries of 4 bytes, as A operands of group g.
  template <typename Add>
  __device__ __forceinline__ void LookUpPair(const Codes& codes, int plane_offset, const Add& add) const {
    uint32_t words[2 * kGroups][2];  // in the order in which the lane's row looks them up
#pragma unroll
    for (int r = 0; r < 2 * kGroups; ++r) {
      words[r][0] = second_first_ ? codes[r][1] : codes[r][0];
      words[r][1] = second_first_ ? codes[r][0] : codes[r][1];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        uint32_t a[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint32_t v[1];
          LookUp(__dp4a(words[2 * g + j % 2][j / 2], level_of_[i], address_[i][j / 2]), plane_offset, v);
          a[j] = v[0];
        }
        add(g, a);
      }
    }
  }

  // Calls add(a) with two bytes' look-ups of every lane's word `half` in entries of 8 bytes, as A operands of 8 rows
  // each: an entry's words are rows lane / 4 and 8 + lane / 4 of a product.
  template <typename Add>
  __device__ __forceinline__ void LookUpHalf(const Codes& codes, int half, int plane_offset, const Add& add) const {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      uint32_t a[2 * kGroups][4];
#pragma unroll
      for (int r = 0; r < 2 * kGroups; ++r) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          uint32_t v[2];
          LookUp(__dp4a(codes[r][half], level_of_[i + j], address_[i + j][0]), plane_offset, v);
          a[r][2 * j] = v[0];
          a[r][2 * j + 1] = v[1];
        }
      }
      add(a);
    }
  }

 private:
  static constexpr uint32_t kOrders = Layout::kEntryBytes == 4 ? 2 : 1;  // in which a lane visits two words
  uint32_t address_[4][kOrders];                                         // of code 0 in the first plane
  uint32_t level_of_[4];                                                 // dp4a operand: code * kLevelBytes
  bool second_first_;                                                    // of two words
};

}  // namespace stoch::cuda::batch_table
