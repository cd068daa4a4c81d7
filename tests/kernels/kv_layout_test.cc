// SPDX-License-Identifier: Apache-2.0
// The order of words in the KV cache of a GPU: nothing is in two places, and what kernels load at once is together.
#include "kernels/cuda/sc/format/kv_layout.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

namespace stoch::cuda {
namespace {

constexpr int kHeads = 3;

KvLayout LayoutOf(int head_dim, int page_tokens) {
  return {kHeads, head_dim, page_tokens, std::countr_zero(static_cast<unsigned>(page_tokens))};
}

// Calls check(layout, what a page and head has of words, and where those of page 2 and head 1 begin).
void ForLayouts(const std::function<void(const KvLayout&, int64_t, int64_t)>& check) {
  for (const int head_dim : {8, 16, 24, 64, 80, 128, 256}) {
    for (const int page_tokens : {4, 8, 16, 32, 64}) {
      SCOPED_TRACE("head_dim " + std::to_string(head_dim) + ", page_tokens " + std::to_string(page_tokens));
      const int64_t words = int64_t{head_dim} / 4 * page_tokens;
      check(LayoutOf(head_dim, page_tokens), words, (2 * kHeads + 1) * words);
    }
  }
}

// place(i, j) of i < rows and j < columns are the `words` places of a page and head from 0 on, each once.
void ExpectFilled(int rows, int columns, int64_t words, const std::function<int64_t(int, int)>& place) {
  std::set<int64_t> places;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) places.insert(place(i, j));
  EXPECT_EQ(static_cast<int64_t>(places.size()), words);
  EXPECT_EQ(*places.begin(), 0);
  EXPECT_EQ(*places.rbegin(), words - 1);
}

TEST(KvLayout, WordsOfKeysFillAPageAndHead) {
  ForLayouts([](const KvLayout& kv, int64_t words, int64_t begin) {
    ExpectFilled(kv.head_dim / 4, kv.page_tokens, words,
                 [&](int word, int slot) { return kv.KWord(2, 1, word, slot) - begin; });
  });
}

TEST(KvLayout, WordsOfValuesFillAPageAndHead) {
  ForLayouts([](const KvLayout& kv, int64_t words, int64_t begin) {
    ExpectFilled(kv.page_tokens / 4, kv.head_dim, words,
                 [&](int group, int dim) { return kv.VWord(2, 1, group, dim) - begin; });
  });
}

// Kernels load 16 bytes: a word of four keys, or four dimensions of four values.
TEST(KvLayout, FourWordsAreSixteenBytes) {
  ForLayouts([](const KvLayout& kv, int64_t, int64_t) {
    for (int word = 0; word < kv.head_dim / 4; ++word)
      for (int slot = 0; slot < kv.page_tokens; ++slot)
        EXPECT_EQ(kv.KWord(2, 1, word, slot), kv.KWord(2, 1, word, slot / 4 * 4) + slot % 4);
    EXPECT_EQ(kv.KWord(2, 1, 1, 0) % 4, 0);
    for (int group = 0; group < kv.page_tokens / 4; ++group)
      for (int dim = 0; dim < kv.head_dim; ++dim)
        EXPECT_EQ(kv.VWord(2, 1, group, dim), kv.VWord(2, 1, group, dim / 4 * 4) + dim % 4);
    EXPECT_EQ(kv.VWord(2, 1, kv.page_tokens / 4 - 1, 4) % 4, 0);
  });
}

// What the resident kernels take for granted: 16 positions are one piece, and steps within it are constants.
TEST(KvLayout, TilesAreOnePiece) {
  int tiled = 0;
  ForLayouts([&](const KvLayout& kv, int64_t, int64_t begin) {
    if (!kv.IsTiled()) return;
    ++tiled;
    const int64_t tile_words = int64_t{4} * kv.head_dim;
    for (int slot = 0; slot < kv.page_tokens; ++slot) {
      for (int word = 0; word < kv.head_dim / 4; ++word) {
        const int64_t place = kv.KWord(2, 1, word, slot) - begin;
        EXPECT_EQ(place / tile_words, slot / KvLayout::kTile);
        EXPECT_EQ(place % tile_words, word * KvLayout::kTileKey + slot % KvLayout::kTile);
      }
    }
    for (int group = 0; group < kv.page_tokens / 4; ++group) {
      for (int dim = 0; dim < kv.head_dim; ++dim) {
        const int64_t place = kv.VWord(2, 1, group, dim) - begin;
        EXPECT_EQ(place / tile_words, group / 4);
        EXPECT_EQ(place % tile_words, dim / 16 * KvLayout::kTileDims + group % 4 * KvLayout::kTileGroup + dim % 16);
      }
    }
  });
  EXPECT_EQ(tiled, 15);  // pages of 16, 32 and 64 tokens, five of the seven head_dims
}

// Eight neighbouring lanes of row kernels, which take 32 tokens of a word or 32 dimensions of four tokens, and of tensor
// cores' operands, four words of eight tokens or eight dimensions of 16: two lines of 128 bytes.
TEST(KvLayout, EightLanesReadTwoLines) {
  const KvLayout kv = LayoutOf(128, 64);
  constexpr int kLineWords = 32;
  const auto lines = [&](const std::function<int64_t(int)>& place) {
    std::set<int64_t> touched;
    for (int lane = 0; lane < 8; ++lane) touched.insert(place(lane) / kLineWords);
    return touched.size();
  };
  EXPECT_EQ(lines([&](int lane) { return kv.KWord(1, 0, 5, lane * 4); }), 2u);
  EXPECT_EQ(lines([&](int lane) { return kv.VWord(1, 0, 3, 32 + lane * 4); }), 2u);
  EXPECT_EQ(lines([&](int lane) { return kv.KWord(1, 0, 4 + lane % 4, 8 + lane / 4 * 4); }), 2u);
  EXPECT_EQ(lines([&](int lane) { return kv.VWord(1, 0, 4 + lane % 4, 8 + lane / 4 * 4); }), 2u);
}

}  // namespace
}  // namespace stoch::cuda
