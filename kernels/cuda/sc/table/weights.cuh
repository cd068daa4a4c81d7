// SPDX-License-Identifier: Apache-2.0
// How weights come to the table kernels (kernel.cuh): the units of a warp, and the ring through which it loads their
// codes with cp.async.
#pragma once

#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/sc/table/stage.cuh"

namespace stoch::cuda::batch_table {

// Number of weight tiles (32 rows x 16 dimensions) in one of kParts parts of a chunk.
template <int kParts>
inline constexpr int kPartTiles = kChunkDims / kTileDims / kParts;

// A unit of a warp's work: one part of a chunk (a kParts-th of its dimensions) for kParts blocks of kUnitRows weight
// rows; always four pairs of weight tiles.
struct Unit {
  const uint8_t* codes = nullptr;  // this lane's 16 bytes, row `lane`, of tile 0 of the first block
  const float* scales = nullptr;   // scale of the unit's first row in the chunk
  // Weight tiles that each block of kUnitRows rows has in the part. 0 or less: none, past the thread block's last unit
  // or in a short last chunk that ends before the part.
  int tiles = 0;
};
static_assert(kUnitRows == kTileRows && kRowPadding % (2 * kUnitRows) == 0);
inline constexpr int kUnitPairs = 4;  // pairs of weight tiles of a unit

// Iterates over the units of one warp, every kWarps-th of its block. kParts: as in Unit. Most steps stay in one chunk
// and task and only add to addresses.
template <int kParts>
class Walk {
 public:
  Unit unit;

  // Starts at unit `index` of the grid, which is row block `row_block` of part `part`; a row_block past the part's last
  // counts on in the next parts. `end` is the end of the block's units. A row block here is kParts * kUnitRows rows.
  __device__ __forceinline__ Walk(const TableArgs& args, int part, int row_block, int index, int end, int lane)
      : index_(index),
        end_(end),
        lane_(lane),
        row_blocks_(args.outputs.groups / (kGroups * kParts)),
        part_(part),
        row_block_(row_block) {
    Locate(args);
  }
  __device__ __forceinline__ void Step(const TableArgs& args) {
    index_ += kWarps;
    row_block_ += kWarps;
    if (row_block_ < run_end_) {
      unit.codes += static_cast<uint32_t>(args.outputs.dims.padded) * (kWarps * kUnitRows * kParts);
      unit.scales += kWarps * kUnitRows * kParts;
      if (index_ >= end_) unit.tiles = 0;
      return;
    }
    Locate(args);
  }

 private:
  int index_, end_, lane_, row_blocks_;
  int part_, row_block_;
  int run_end_ = 0;  // number of the last row block of the current task + 1

  __device__ __forceinline__ void Locate(const TableArgs& args) {
    unit = {};
    run_end_ = 0;
    if (index_ >= end_) return;
    for (; row_block_ >= row_blocks_; row_block_ -= row_blocks_) ++part_;
    constexpr int kRows = kUnitRows * kParts;
    const ScKernelTask& task = BatchTaskOf(args.outputs, row_block_ * kGroups * kParts);
    const int first = task.first_block / (kGroups * kParts);
    run_end_ = first + (task.rows + kRows - 1) / kRows;
    const int own = row_block_ - first;
    const int chunk = part_ >> (args.outputs.parts - 1);
    const int skipped = (part_ & (args.outputs.parts - 1)) * kPartTiles<kParts>;
    const ScDims& dims = args.outputs.dims;
    const int row_tiles = static_cast<int>(dims.padded) / kTileDims;
    const int tile = own * kParts * row_tiles + chunk * (static_cast<int>(dims.chunk_stride) / kTileDims) + skipped;
    unit.codes = task.codes + uint64_t{static_cast<uint32_t>(tile)} * kTileBytes + lane_ * 16;
    unit.scales = task.scales + static_cast<uint32_t>(chunk * task.rows_padded + own * kRows);
    // All chunks but the last have one size.
    const int chunk_tiles = chunk + 1 < static_cast<int>(dims.chunks)
                                ? static_cast<int>(dims.chunk_stride) / kTileDims
                                : row_tiles - chunk * (static_cast<int>(dims.chunk_stride) / kTileDims);
    unit.tiles = min(chunk_tiles - skipped, kPartTiles<kParts>);
  }
};

inline constexpr int kPairBytes = 2 * kTileBytes;
template <int kRingPairs>
inline constexpr int kRingBytes = kWarps* kRingPairs* kPairBytes;

// One lane's codes of a pair of tiles (32 rows x 32 dimensions). Word [2 * group + i][k] has row lane / 4 + 8 i of the
// group, dimensions 8 * (lane % 4) + 4 k to 8 * (lane % 4) + 4 k + 3.
using Codes = uint32_t[2 * kGroups][2];

// A warp's private ring of weight codes in shared memory, with kRingPairs (2 or 4) pairs of tiles in flight.
//
// A lane reads 8 bytes of a row at a time. So that half a warp meets no bank conflicts, the rows of each pair's second
// tile are swizzled: row r is stored at place r ^ kTurn.
//
// Alternatives that lost: docs/tuning/batch.md#2-to-16-tokens.
template <int kParts, int kRingPairs>
class Ring {
 public:
  __device__ __forceinline__ Ring(uint8_t* shared, int warp, int lane) {
    const auto at = SharedAddress(shared + warp * kRingPairs * kPairBytes);
    to_[0] = at + static_cast<uint32_t>(lane * kTileDims);
    to_[1] = at + static_cast<uint32_t>((lane ^ kTurn) * kTileDims) + kTileBytes;
    const int tile = lane % 4 / 2;
    from_ = at + static_cast<uint32_t>(tile * kTileBytes + (lane / 4 ^ tile * kTurn) * kTileDims + lane % 2 * 8);
  }

  // Issues the copies of pair kQ of a unit as one cp.async group; tiles that the unit does not have are zero-filled.
  template <int kQ>
  __device__ __forceinline__ void Ask(const TableArgs& args, const Unit& unit) const {
    constexpr int kOwnPairs = kUnitPairs / kParts;  // pairs of tiles of one block of rows
    const uint8_t* from = unit.codes +
                          (kQ / kOwnPairs) * (static_cast<uint32_t>(args.outputs.dims.padded) * kUnitRows) +
                          kQ % kOwnPairs * kPairBytes;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const bool have = kQ % kOwnPairs * 2 + k < unit.tiles;
      asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to_[k] + Place(kQ)),
                   "l"(from + k * kTileBytes), "r"(have ? 16 : 0)
                   : "memory");
    }
    CommitCopies();
  }
  // Waits for the pair kQ, which must be the oldest in flight, and loads this lane's codes of it.
  template <int kQ>
  __device__ __forceinline__ void Take(Codes& codes) const {
    WaitForCopies<kRingPairs - 1>();
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 2 * kGroups; ++r) {
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n"
                   : "=r"(codes[r][0]), "=r"(codes[r][1])
                   : "r"(from_ + Place(kQ) + r * 8 * kTileDims)
                   : "memory");
    }
    __syncwarp();  // all lanes have read the pair before the next Ask overwrites it
  }

 private:
  static constexpr int kTurn = 4;  // the swizzle of the second tile's rows
  uint32_t to_[2];                 // shared addresses to which this lane copies its row of each tile of a pair
  uint32_t from_;                  // shared address of this lane's codes of row lane / 4 of a pair

  // Byte offset of a pair in the ring.
  static constexpr uint32_t Place(int pair) { return static_cast<uint32_t>(pair % kRingPairs * kPairBytes); }
};

}  // namespace stoch::cuda::batch_table
