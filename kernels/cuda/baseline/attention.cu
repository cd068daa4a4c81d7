// SPDX-License-Identifier: Apache-2.0
// Attention of tiles of query rows for the fp16 baseline: flash attention with mma.sync m16n8k16, keys and values
// double-buffered in shared memory, one warp per 16 query rows. Source: the online softmax of FlashAttention-2 (Dao,
// 2023).
#include "kernels/cuda/attention/tile_window.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/shared_address.cuh"
#include "kernels/cuda/runtime/launch.h"

namespace stoch::cuda {
namespace {

constexpr int kWarps = kQueryTile / 16;
constexpr int kThreads = kWarps * 32;
constexpr int kKeys = 64;  // keys of one step of the loop over the context
constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void LoadTransposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void HalfMma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t PackHalves(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Returns the shared address of 16-byte piece `piece` of row `row` in a swizzled tile: eight rows of a matrix are in
// different banks.
template <int kHeadDim>
__device__ __forceinline__ uint32_t Piece(uint32_t base, int row, int piece) {
  return base + static_cast<uint32_t>((row * (kHeadDim / 8) + (piece ^ (row & 7))) * 16);
}

// Issues asynchronous copies of the keys and values of kKeys positions from `first` on to two tiles in shared memory.
// Called by all threads.
template <int kHeadDim>
__device__ void LoadKeys(const AttentionArgs& a, const int32_t* pages, int kv_head, int first, int length,
                         uint32_t k_tile, uint32_t v_tile) {
  constexpr int kPieces = kHeadDim / 8;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    const int t = min(first + row, length - 1);  // positions past the end repeat the last one; their scores are masked
    const int64_t offset = a.kv.Value(pages[t >> a.kv.page_shift], kv_head, t & (a.kv.page_tokens - 1)) + piece * 8;
    CopyAsync16(Piece<kHeadDim>(k_tile, row, piece), a.kv.k_half + offset);
    CopyAsync16(Piece<kHeadDim>(v_tile, row, piece), a.kv.v_half + offset);
  }
  CommitCopies();
}

// State of the online softmax for a lane's part of a warp's 16 query rows: queries, unnormalized output, largest score
// and sum so far. A lane has rows lane / 4 and lane / 4 + 8.
template <int kHeadDim>
struct OnlineRows {
  uint32_t q[kHeadDim / 16][4];
  float out[kHeadDim / 8][4] = {};
  float largest[2] = {-1e30f, -1e30f};
  float sum[2] = {};

  // Loads the queries, scaled by inv_sqrt * log2(e), so that weights are powers of two (exp2f).
  __device__ __forceinline__ void Load(const AttentionArgs& a, const QueryTile& tile, int head, int tile_row,
                                       int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.first_row + min(tile_row + half * 8, tile.num_rows - 1);
      const float* from = a.q + row * a.q_stride + static_cast<int64_t>(head) * kHeadDim + (lane & 3) * 2;
      const float scale = a.inv_sqrt * kLog2E;
#pragma unroll
      for (int k = 0; k < kHeadDim / 16; ++k) {
        q[k][half] = PackHalves(from[k * 16] * scale, from[k * 16 + 1] * scale);
        q[k][half + 2] = PackHalves(from[k * 16 + 8] * scale, from[k * 16 + 9] * scale);
      }
    }
  }

  __device__ __forceinline__ void Scores(uint32_t k_tile, int lane, float (&scores)[kKeys / 8][4]) const {
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        LoadMatrices(b, Piece<kHeadDim>(k_tile, n * 16 + (lane & 7) + (lane >> 4) * 8, k * 2 + ((lane >> 3) & 1)));
        HalfMma(scores[2 * n], q[k], b[0], b[1]);
        HalfMma(scores[2 * n + 1], q[k], b[2], b[3]);
      }
    }
  }

  // Replaces scores by weights. The output and the sum so far are scaled to the new largest score.
  __device__ __forceinline__ void Softmax(float (&scores)[kKeys / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = largest[half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float scale = exp2f(largest[half] - top);
      largest[half] = top;
      sum[half] *= scale;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        out[n][2 * half] *= scale;
        out[n][2 * half + 1] *= scale;
      }
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        scores[n][2 * half] = exp2f(scores[n][2 * half] - top);
        scores[n][2 * half + 1] = exp2f(scores[n][2 * half + 1] - top);
        sum[half] += scores[n][2 * half] + scores[n][2 * half + 1];
      }
    }
  }

  __device__ __forceinline__ void AddValues(uint32_t v_tile, int lane, const float (&weights)[kKeys / 8][4]) {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const uint32_t p[4] = {PackHalves(weights[2 * k][0], weights[2 * k][1]),
                             PackHalves(weights[2 * k][2], weights[2 * k][3]),
                             PackHalves(weights[2 * k + 1][0], weights[2 * k + 1][1]),
                             PackHalves(weights[2 * k + 1][2], weights[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; ++n) {
        uint32_t b[4];
        LoadTransposed(b, Piece<kHeadDim>(v_tile, k * 16 + (lane & 15), n * 2 + (lane >> 4)));
        HalfMma(out[2 * n], p, b[0], b[1]);
        HalfMma(out[2 * n + 1], p, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void Write(const AttentionArgs& a, const QueryTile& tile, int head, int tile_row,
                                        int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = sum[half];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const int row = tile_row + half * 8;
      if (row >= tile.num_rows) continue;
      float* to =
          a.out + (tile.first_row + row) * a.out_stride + static_cast<int64_t>(head) * kHeadDim + (lane & 3) * 2;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
        to[n * 8] = out[n][2 * half] / total;
        to[n * 8 + 1] = out[n][2 * half + 1] / total;
      }
    }
  }
};

// Grid: blockIdx.x is a query head, blockIdx.y a tile of kQueryTile query rows, a warp per 16 of them.
template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) HalfTileKernel(const AttentionArgs a, const QueryTile* tiles) {
  extern __shared__ __half shared[];  // two buffers: [2][keys, values][kKeys][kHeadDim]
  constexpr int kTileBytes = kKeys * kHeadDim * 2;
  const int lane = static_cast<int>(threadIdx.x & 31);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const int head = static_cast<int>(blockIdx.x);
  const int kv_head = head / a.group;
  const QueryTile tile = tiles[blockIdx.y];
  const int32_t* pages = a.pass.pages + static_cast<int64_t>(tile.sequence) * a.pass.max_pages;
  const int length = tile.start_position + tile.num_rows;
  const int steps = (length + kKeys - 1) / kKeys;
  const uint32_t base = SharedAddress(shared);
  const int first_step = FirstSeen(a, tile.start_position) / kKeys;
  LoadKeys<kHeadDim>(a, pages, kv_head, first_step * kKeys, length, base + first_step % 2 * 2 * kTileBytes,
                     base + first_step % 2 * 2 * kTileBytes + kTileBytes);

  const int tile_row = warp * 16 + (lane >> 2);
  OnlineRows<kHeadDim> rows;
  rows.Load(a, tile, head, tile_row, lane);

  for (int step = first_step; step < steps; ++step) {
    const uint32_t k_tile = base + static_cast<uint32_t>((step & 1) * 2 * kTileBytes);
    const uint32_t v_tile = k_tile + kTileBytes;
    if (step + 1 < steps) {
      const uint32_t next = base + static_cast<uint32_t>(((step + 1) & 1) * 2 * kTileBytes);
      LoadKeys<kHeadDim>(a, pages, kv_head, (step + 1) * kKeys, length, next, next + kTileBytes);
      WaitForCopies<1>();
    } else {
      WaitForCopies<0>();
    }
    __syncthreads();

    float scores[kKeys / 8][4] = {};
    rows.Scores(k_tile, lane, scores);
    if ((step + 1) * kKeys > tile.start_position || step * kKeys < FirstSeen(a, tile.start_position + kQueryTile - 1)) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = step * kKeys + n * 8 + (lane & 3) * 2 + (i & 1);
          const int position = tile.start_position + tile_row + (i >> 1) * 8;
          if (key > position || key < FirstSeen(a, position)) scores[n][i] = -1e30f;
        }
      }
    }
    rows.Softmax(scores);
    rows.AddValues(v_tile, lane, scores);
    __syncthreads();
  }

  rows.Write(a, tile, head, tile_row, lane);
}

template <int kHeadDim>
void Launch(DeviceContext& ctx, const AttentionArgs& args, const TileSet& tiles) {
  constexpr int kShared = 2 * 2 * kKeys * kHeadDim * 2;
  AllowShared(ctx, &HalfTileKernel<kHeadDim>, size_t{kShared});
  const dim3 grid(static_cast<unsigned>(args.num_heads), static_cast<unsigned>(tiles.host.size()));
  HalfTileKernel<kHeadDim><<<grid, kThreads, kShared, ctx.stream>>>(args, tiles.device);
  STOCH_CUDA_LAUNCH("HalfTileKernel");
}

}  // namespace

void LaunchHalfTiles(DeviceContext& ctx, const AttentionArgs& args, const TileSet& tiles) {
  if (args.kv.head_dim == 128) {
    Launch<128>(ctx, args, tiles);
  } else {
    Launch<64>(ctx, args, tiles);
  }
}

}  // namespace stoch::cuda
