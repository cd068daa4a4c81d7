// SPDX-License-Identifier: Apache-2.0
// Places in blocks: reused, aligned, and the same for the same takings.
#include "kernels/plan/block_stack.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/math/random.h"

namespace stoch {
namespace {

TEST(BlockStack, EarlierBlocksAreUsedAgain) {
  BlockStack stack;
  stack.AddBlock(1000 * 256);
  ASSERT_TRUE(stack.Take(900 * 256));
  EXPECT_FALSE(stack.Take(200 * 256));
  stack.AddBlock(500 * 256);
  const auto second = stack.Take(200 * 256);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->block, 1u);
  const auto first = stack.Take(100 * 256);  // the rest of the first block, not a third one
  ASSERT_TRUE(first);
  EXPECT_EQ(first->block, 0u);
  EXPECT_EQ(first->offset, 900u * 256);
  EXPECT_EQ(stack.largest_free(), 300u * 256);
  stack.GiveBack(0);
  EXPECT_EQ(stack.largest_free(), 1000u * 256);
}

TEST(BlockStack, PlacesAreAlignedAndDoNotOverlap) {
  BlockStack stack;
  stack.AddBlock(1 << 16);
  const auto a = stack.Take(1);
  const auto b = stack.Take(257);
  const auto c = stack.Take(0);
  const auto d = stack.Take(8);
  ASSERT_TRUE(a && b && c && d);
  EXPECT_EQ(a->offset, 0u);
  EXPECT_EQ(b->offset, 256u);
  EXPECT_EQ(c->offset, 768u);
  EXPECT_EQ(d->offset, 768u);
}

// Prompts that grow, pass after pass, as they did when every pass wanted a little more than the one before: with what
// the largest takes reserved, no block is ever added.
TEST(BlockStack, GrowingWantsStayInWhatWasReserved) {
  BlockStack stack;
  stack.AddBlock(64 << 20);
  for (size_t pass = 1; pass <= 1000; ++pass) {
    const size_t outer = stack.depth();
    const auto packed = stack.Take(pass * 4096);
    const size_t inner = stack.depth();
    ASSERT_TRUE(packed && stack.Take(pass * 30000) && stack.Take(pass * 30000)) << pass;
    stack.GiveBack(inner);
    stack.GiveBack(outer);
  }
  EXPECT_EQ(stack.blocks(), 1u);
  EXPECT_EQ(stack.largest_free(), size_t{64} << 20);
}

TEST(BlockStack, TheSameTakingsGiveTheSamePlaces) {
  BlockStack stack;
  for (const size_t bytes : {5000, 100000, 20000}) stack.AddBlock(bytes);
  const auto run = [&](uint64_t seed) {
    std::vector<size_t> places;
    for (uint64_t i = 0; i < 20; ++i) {
      const auto place = stack.Take(RandomBits(seed, 1, i) % 9000);
      if (place) places.insert(places.end(), {place->block, place->offset});
    }
    stack.GiveBack(0);
    return places;
  };
  const std::vector<size_t> first = run(3);
  EXPECT_FALSE(first.empty());
  run(4);
  EXPECT_EQ(run(3), first);
}

}  // namespace
}  // namespace stoch
