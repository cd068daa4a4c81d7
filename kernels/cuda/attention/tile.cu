// SC attention of long sequences: groups of tiles through scores, softmax and p v.
#include <algorithm>

#include "kernels/cuda/attention/tile.h"
#include "kernels/cuda/base/cuda_check.h"

namespace stoch::cuda {
namespace {

// Scores of one group of tiles; a group has to fill the GPU, and all of a 2048-token window should be one group.
constexpr int64_t kMaxScoreBytes = int64_t{640} << 20;

int64_t PaddedLength(const QueryTile& tile) {
  const int64_t length = tile.start_position + tile.num_rows;
  return (length + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
}

}  // namespace

bool ScTilesSupport(const ScTables& qk, const ScTables& av, const KvView& kv) {
  // 128 cycles and 128 dimensions: ranks fit a byte, and a score's count 16 bits.
  const auto fits = [](const ScTables& t) {
    return t.streams != nullptr && (t.stream_words == 2 || t.stream_words == 4);
  };
  return fits(qk) && fits(av) && (kv.head_dim == 64 || kv.head_dim == 128);
}

void LaunchScTiles(DeviceContext& ctx, const AttentionArgs& args, AttentionMode mode, const ScTables& qk,
                   const ScTables& av, const QueryCodes& q, const WindowScales& scales, const TileSet& tiles) {
  Scratch scratch(ctx.workspace);
  TileArgs tile_args;
  tile_args.attention = args;
  tile_args.qk = qk;
  tile_args.av = av;
  tile_args.q = q;
  tile_args.window = scales;
  const int64_t positions = tiles.packed_positions;
  const int64_t packed = positions * args.kv.num_kv_heads;
  tile_args.kv.positions = positions;
  tile_args.kv.k = scratch.Take<PackedWord>(packed * args.kv.head_dim / 4);
  tile_args.kv.v = scratch.Take<PackedWord>(packed * args.kv.head_dim / 4);
  tile_args.kv.k_scales = scratch.Take<float>(packed);
  tile_args.kv.v_scales = scratch.Take<float>(packed);
  LaunchPackKv(ctx, tile_args, tiles.num_sequences, tiles.max_length);

  const auto count = static_cast<int64_t>(tiles.host.size());
  const auto run = [&](bool head_max) {
    for (int64_t first = 0; first < count;) {
      Scratch group(ctx.workspace);
      const int64_t stride = PaddedLength(tiles.host[static_cast<size_t>(first)]);
      const int64_t rows_of_tile = static_cast<int64_t>(args.num_heads) * kQueryTile;
      const int64_t tile_bytes = rows_of_tile * stride * static_cast<int64_t>(sizeof(int16_t));
      const int64_t taken = std::clamp<int64_t>(kMaxScoreBytes / tile_bytes, 1, count - first);
      tile_args.tiles = tiles.device + first;
      tile_args.num_tiles = static_cast<int32_t>(taken);
      tile_args.scratch.stride = stride;
      tile_args.scratch.scores = group.Take<int16_t>(taken * rows_of_tile * stride);
      tile_args.scratch.p = group.Take<PackedWord>(taken * rows_of_tile * stride / 4);
      tile_args.scratch.p_scales = group.Take<float>(taken * rows_of_tile);
      LaunchTileScores(ctx, tile_args);
      LaunchTileSoftmax(ctx, tile_args, mode, head_max);
      if (!head_max) LaunchTileValues(ctx, tile_args, mode);
      first += taken;
    }
  };
  // The scale of a head's probabilities spans all its rows: find the largest first, then go through the tiles again.
  if (mode == AttentionMode::kPerHead) run(true);
  run(false);
}

}  // namespace stoch::cuda
