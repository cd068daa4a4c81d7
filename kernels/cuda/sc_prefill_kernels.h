// What the prefill kernels are launched with: tasks, streams and the split of the work over clusters.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/sc_layout.h"
#include "kernels/cuda/sc_streams.h"

namespace stoch::cuda {

inline constexpr int kMaxPrefillTasks = 4;
inline constexpr int kPrefillGroups = 2;                  // consumer warpgroups of a block, 64 weight rows each
inline constexpr int kPrefillRows = 64 * kPrefillGroups;  // weight rows of a block
inline constexpr int kPrefillCluster = 2;                 // blocks that share every copy of the activations
inline constexpr int kSuperRows = kPrefillRows * kPrefillCluster;
inline constexpr int kPrefillTokens = 192;
inline constexpr int kPrefillFlags = kPrefillCluster * kPrefillGroups * 4;  // of a cut tile: one for each warp

struct PrefillTask {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int rows = 0;
  int rows_padded = 0;
  int first_super = 0;  // of this task's rows among the super tiles of all tasks
  bool add = false;
};

// How tiles of kSuperRows x tile_tokens go to clusters. Each cluster takes `full` whole tiles; what remains is cut in
// ranges of `extra` chunks. The y of a cut tile passes from piece to piece through memory, in chunk order: every piece
// but a tile's first runs after at least as many whole tiles as its number in the tile, when the piece before it is
// long done. No cluster waits in practice, and the bits are those of one pass over the chunks.
struct PrefillSchedule {
  int clusters = 1;
  int supers = 0;  // super tiles of all tasks
  int tiles = 0;   // supers * token tiles; the super tile varies fastest, so that running clusters share activations
  int full = 0;
  int rest = 0;   // tiles - full * clusters
  int extra = 0;  // chunks of a range of the rest
  int chunks = 0;

  struct Piece {
    int tile = 0;
    int chunk_begin = 0;
    int chunk_end = 0;  // begin == end: nothing to do
    int number = 0;     // of this piece in its tile
  };
  static constexpr int kExtraSteps = 2;
  STOCH_LAYOUT_FN int steps() const { return full + kExtraSteps; }
  // Step `step` of `cluster`, 0 <= step < steps().
  STOCH_LAYOUT_FN Piece At(int cluster, int step) const {
    const int begin = cluster * extra;
    const int end = begin + extra < rest * chunks ? begin + extra : rest * chunks;
    const int first_tile = full * clusters;
    Piece head, later;
    if (begin < end) {
      const int tile = begin / chunks;
      const int boundary = (tile + 1) * chunks;
      const int cut = end < boundary ? end : boundary;
      if (begin == tile * chunks) {
        head = {first_tile + tile, 0, cut - begin, 0};
      } else {
        later = {first_tile + tile, begin - tile * chunks, cut - tile * chunks, cluster - tile * chunks / extra};
        if (end > boundary) head = {first_tile + tile + 1, 0, end - boundary, 0};
      }
    }
    if (step == 0) return head;
    const int slot = later.number < full ? later.number : full;
    if (later.number > 0 && step - 1 == slot) return later;
    const int index = later.number > 0 && step - 1 > slot ? step - 2 : step - 1;
    if (index >= full) return {};
    return {index * clusters + cluster, 0, chunks, 0};
  }
};

// The split for `clusters` clusters that run at the same time.
PrefillSchedule MakePrefillSchedule(int clusters, int supers, int token_tiles, int chunks);

struct PrefillArgs {
  PrefillTask tasks[kMaxPrefillTasks];
  int task_count = 0;
  ScStreams streams;
  PrefillSchedule schedule;
  float gain = 0;
  // Ranks of the weights' levels where they are not DirectRanks: ScTables::ranks [masks][levels].
  const uint16_t* ranks = nullptr;
  int masks = 1;
  int levels = 128;
  uint32_t minus_one = ~0u;  // a constant that the compiler does not know to be one: see MultiplyAdd
  // Set by LaunchPrefillWgmma. Every warpgroup starts a chunk a stage behind the one before it, so that their epilogues
  // (the chunk's scales) fall apart in time and the tensor cores never idle for all three.
  bool stagger = false;
  float* partial =
      nullptr;  // [rest][kPrefillCluster][accumulators][consumers]: y of cut tiles, in the order threads hold it
  int* flags = nullptr;  // [rest][kPrefillFlags]: pieces done, by warp
};

// wgmma b1 (sm_90a). Requires streams.tile_tokens = kPrefillTokens and every cluster of the schedule resident.
void LaunchPrefillWgmma(cudaStream_t stream, const PrefillArgs& args);
int64_t MaxPrefillClusters(const PrefillArgs& args);

// mma.sync b1 (sm_80 and newer); any tile_tokens; ignores the schedule.
void LaunchPrefillMma(cudaStream_t stream, const PrefillArgs& args);

}  // namespace stoch::cuda
