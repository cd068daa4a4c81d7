// SPDX-License-Identifier: Apache-2.0
// Device code of the table kernels (kernel.cuh): look-ups in the table in shared memory, and sums on the tensor cores.
#pragma once

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/sc/table/weights.cuh"

namespace stoch::cuda::batch_table {

// d += A B over signed bytes, by one mma of 16 rows x 8 columns x 32 bytes.
__device__ __forceinline__ void MultiplyAdd(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MmaBytes(d, a, b[0], b[1]);
}

// d += popcount(A & B), by one binary mma of 16 rows x 8 columns x 256 bits. `mask`: this lane's words of operand B,
// column lane / 4; both words are equal.
__device__ __forceinline__ void CountAdd(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&mask)[2]) {
  MmaBits(d, a, mask[0], mask[1]);
}

// d += A B, where A's bytes are masked with `kept` and unsigned, and B's bytes are signed.
template <uint32_t kept>
__device__ __forceinline__ void MultiplyAddUnsigned(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const uint32_t bytes[4] = {a[0] & kept, a[1] & kept, a[2] & kept, a[3] & kept};
  MmaUnsignedBytes(d, bytes, b[0], b[1]);
}

// Keeps a value in a register: otherwise the compiler computes a lane's constants again for every unit.
__device__ __forceinline__ void Pin(uint32_t& value) { asm volatile("" : "+r"(value)); }

// v = the table entry of kWords words at shared address `address` + plane_offset.
template <int kWords>
__device__ __forceinline__ void LookUp(uint32_t address, int plane_offset, uint32_t (&v)[kWords]) {
  address += static_cast<uint32_t>(plane_offset);
  if constexpr (kWords == 1) {
    asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(v[0]) : "r"(address));
  } else {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(v[0]), "=r"(v[1]) : "r"(address));
  }
}

// Loads an operand B whose two words are equal. Both words are loaded from shared memory, because a compiler that knew
// them to be equal would keep one register and copy it into a pair for every mma.
__device__ __forceinline__ void LoadTwice(const uint2& from, uint32_t (&to)[2]) { LookUp(SharedAddress(&from), 0, to); }

// Layout of the look-up table for kDims dimensions in shared memory: an entry of kEntryBytes for every code, negative
// codes included, of every dimension. kSlots dimensions form a plane; in a plane, the entries of one code are a line of
// 128 bytes, which spans all banks and has one slot for each dimension.
//
// A lane holds 8 dimensions of a row of a pair of tiles (Codes), two words of four bytes. Lanes look up the bytes of a
// word in an order that depends on their row, so that the lanes served at a time meet different banks. With entries of
// 8 bytes, 16 lanes of four rows are served at a time, and a lane starts with byte row % 4. With entries of 4 bytes, 32
// lanes of eight rows are served at a time, and lanes of the last four rows also start with the second word.
template <int kEntryBytes_, int kDims>
struct TableLayout {
  static constexpr int kEntryBytes = kEntryBytes_;
  static_assert(kEntryBytes == 4 || kEntryBytes == 8);
  static constexpr int kLevelBytes = 128;
  static constexpr int kSlots = kLevelBytes / kEntryBytes;
  static constexpr int kPlanes = kDims / kSlots;
  static constexpr int kNegative = 128 * kLevelBytes;  // bytes from a level's line to the line of its negative code
  static constexpr int kPlaneBytes = 2 * kNegative;
  static constexpr int kBytes = kPlanes * kPlaneBytes;

  // The slot of byte j of word k that lane `lane` holds (Codes).
  static __device__ __forceinline__ int Slot(int k, int lane, int j) {
    return kEntryBytes == 4 ? lane % 4 * 8 + k * 4 + j : lane % 4 * 4 + j;
  }
  // The dimension, counted from the table's first, whose entries slot `slot` of plane `plane` holds; inverts Slot.
  static __device__ __forceinline__ int Dim(int plane, int slot) {
    if constexpr (kEntryBytes == 4) return plane * 32 + slot;
    return plane / 2 * 32 + slot / 4 * 8 + plane % 2 * 4 + slot % 4;
  }
};

// The addresses at which one lane looks up entries. The i-th look-up of a word is of byte (i + row) % 4, row = lane /
// 4.
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

  // Looks up a pair of tiles in a table of 4-byte entries. Calls add(g, a) four times for each group g of 16 rows, `a`
  // being this lane's fragment of operand A for one mma.
  template <typename Add>
  __device__ __forceinline__ void LookUpPair(const Codes& codes, int plane_offset, const Add& add) const {
    uint32_t words[2 * kGroups][2];  // words in the order in which this lane looks them up
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

  // Looks up word `half` of every lane's codes of a pair of tiles in a table of 8-byte entries. Calls add(a) twice,
  // each time with the look-ups of two bytes: a[r] is this lane's fragment of operand A for 8 weight rows. The two
  // words of an entry (tokens 0 to 7 and 8 to 15) take the places of rows lane / 4 and 8 + lane / 4 of the mma.
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
  static constexpr uint32_t kOrders = Layout::kEntryBytes == 4 ? 2 : 1;  // words of a lane with addresses of their own
  uint32_t address_[4][kOrders];  // [look-up][word] shared address of the entry of code 0 in the first plane
  uint32_t level_of_[4];          // [look-up] dp4a operand that extracts a byte of a word and multiplies by kLevelBytes
  bool second_first_;             // whether this lane looks up its second word first
};

}  // namespace stoch::cuda::batch_table
