// SPDX-License-Identifier: Apache-2.0
// Words of a piece of a pass: what was packed comes out again, and nothing else is taken.

#include "models/decoder/rank_link.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "tests/support/expect_invalid.h"

namespace stoch::test {
namespace {

constexpr int64_t kVocab = 96;

PassShape Shape() {
  PassShape shape;
  shape.context = 128;
  shape.kv_tokens = 3 * 128;
  shape.max_rows = 192;
  shape.lanes = 2;
  shape.max_sequences = 3;
  return shape;
}

// Rows 10 to 15 of a pass: two of a sequence that begins, four at position 62 of another.
struct Packed {
  std::array<int32_t, 2> first = {4, 1};  // room for more than its two rows
  std::array<int32_t, 2> second = {5, 0};
  ModelStage::Piece piece;
  PassLayout layout;

  Packed() {
    piece.lane = 1;
    piece.index = 2;
    piece.first_row = 10;
    piece.rows = 6;
    layout.ids = {1, 2, 95, 0, 7, 8};
    layout.sequences = {{0, 2, 0, first}, {2, 4, 62, second, 9}};
    layout.output_rows = {1, 5};
  }
  std::vector<int32_t> Words() const { return PackPiece(piece, layout); }
};

TEST(RankPiece, ComesOutAsItWasPacked) {
  const Packed packed;
  const RankPiece piece = UnpackPiece(packed.Words(), Shape(), kVocab);
  EXPECT_EQ(piece.piece.lane, 1u);
  EXPECT_EQ(piece.piece.index, 2u);
  EXPECT_EQ(piece.piece.first_row, 10);
  EXPECT_EQ(piece.piece.rows, 6);
  EXPECT_EQ(piece.layout.ids, packed.layout.ids);
  EXPECT_EQ(piece.piece.outputs, 2);
  EXPECT_EQ(piece.layout.output_rows, (std::vector<int32_t>{1, 5}));
  ASSERT_EQ(piece.layout.sequences.size(), 2u);
  const PassLayout::Sequence &first = piece.layout.sequences[0], &second = piece.layout.sequences[1];
  EXPECT_EQ((std::vector<int32_t>(first.pages.begin(), first.pages.end())), (std::vector<int32_t>{4}));
  EXPECT_EQ((std::vector<int32_t>(second.pages.begin(), second.pages.end())), (std::vector<int32_t>{5, 0}));
  EXPECT_EQ(second.first_row, 2);
  EXPECT_EQ(second.num_rows, 4);
  EXPECT_EQ(second.start_position, 62);
  EXPECT_EQ(first.number, 0u);
  EXPECT_EQ(second.number, 9u);
}

TEST(RankPiece, RefusesEachWordThatIsNotThatOfAPass) {
  const std::vector<int32_t> good = Packed().Words();
  ASSERT_EQ(good,
            (std::vector<int32_t>{1, 2, 10, 6, 2, 0, 2, 0, 0, 1, 4, 2, 4, 62, 9, 2, 5, 0, 1, 2, 95, 0, 7, 8, 2, 1, 5}));
  const auto refused = [&](size_t place, std::initializer_list<int32_t> values, const char* what) {
    for (const int32_t value : values) {
      std::vector<int32_t> words = good;
      words[place] = value;
      ExpectInvalid([&] { UnpackPiece(words, Shape(), kVocab); }, {what});
    }
  };
  constexpr int32_t kLarge = INT32_MAX, kSmall = INT32_MIN;
  refused(0, {-1, 2, kLarge, kSmall}, "lane");
  refused(1, {-1, 1000, kLarge}, "index");
  refused(2, {-1, 192, kLarge}, "first row");
  refused(3, {0, -1, 183, kLarge}, "rows");
  refused(4, {0, -1, 4, kLarge}, "sequences");
  refused(5, {1, -1}, "first row of a sequence");
  refused(6, {0, 7, kLarge, kSmall}, "rows of a sequence");
  refused(7, {-1, 127, kLarge}, "position of a sequence");
  refused(8, {-1, kSmall}, "number of a sequence");
  refused(9, {0, 2, -1, kLarge}, "pages of a sequence");
  refused(10, {-1, 6, kLarge}, "page");
  refused(12, {3}, "its sequences have 5");
  refused(20, {-1, 96, kLarge}, "token");
  refused(24, {-1, 7, kLarge}, "output rows");
  refused(25, {-1, 5, 6, kLarge}, "output row");
  refused(26, {-1, 1, 6, kSmall}, "output row");
  for (size_t size = 0; size < good.size(); ++size) {
    ExpectInvalid(
        [&] {
          UnpackPiece({good.begin(), good.begin() + static_cast<ptrdiff_t>(size)}, Shape(), kVocab);
        },
        {"a piece of a pass"});
  }
  std::vector<int32_t> longer = good;
  longer.push_back(1);
  ExpectInvalid([&] { UnpackPiece(longer, Shape(), kVocab); }, {"1 words behind its end"});
}

TEST(RankPiece, AnyWordsAreRefusedOrThoseOfAPass) {
  std::mt19937 random(3);
  const std::vector<int32_t> good = Packed().Words();
  int taken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<int32_t> words = good;
    for (uint32_t changes = random() % 4; changes > 0; --changes) {
      words[random() % words.size()] = random() % 2 == 0 ? static_cast<int32_t>(random()) : random() % 8;
    }
    if (random() % 8 == 0) words.resize(random() % words.size());
    try {
      const RankPiece piece = UnpackPiece(words, Shape(), kVocab);
      ++taken;
      int64_t rows = 0;
      for (const PassLayout::Sequence& sequence : piece.layout.sequences) {
        rows += sequence.num_rows;
        ASSERT_LE(sequence.start_position + sequence.num_rows, 128);
        ASSERT_EQ(static_cast<int64_t>(sequence.pages.size()), PagesOf(sequence.start_position + sequence.num_rows));
        for (const int32_t page : sequence.pages) ASSERT_TRUE(page >= 0 && page < 6);
      }
      ASSERT_EQ(rows, static_cast<int64_t>(piece.layout.ids.size()));
      ASSERT_LE(piece.piece.first_row + rows, 192);
    } catch (const InvalidInput&) {
    }
  }
  EXPECT_GT(taken, 1000);
}

}  // namespace
}  // namespace stoch::test
