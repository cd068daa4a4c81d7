// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/tensor_view.h"

#include <gtest/gtest.h>

#include <vector>

namespace stoch {
namespace {

TEST(TensorView, MayOverlapKnowsColumnRangesOfOneMatrix) {
  std::vector<float> memory(60);
  const TensorView matrix = MakeView(memory.data(), DType::kF32, {}, 5, 12);
  const TensorView left = Slice(matrix, 1, 0, 4);
  const TensorView middle = Slice(matrix, 1, 4, 5);
  const TensorView right = Slice(matrix, 1, 9, 3);
  for (const auto& [a, b] : {std::pair(left, middle), std::pair(middle, right), std::pair(left, right)}) {
    EXPECT_FALSE(MayOverlap(a, b));
    EXPECT_FALSE(MayOverlap(b, a));
    EXPECT_FALSE(MayOverlap(Slice(a, 0, 1, 3), b));
    EXPECT_FALSE(MayOverlap(a, Slice(b, 0, 2, 2)));
  }
  EXPECT_TRUE(MayOverlap(matrix, right));
  EXPECT_TRUE(MayOverlap(Slice(matrix, 1, 0, 5), middle));
  EXPECT_TRUE(MayOverlap(middle, Slice(matrix, 1, 8, 4)));
  EXPECT_TRUE(MayOverlap(left, left));
  // A window that runs over the end of a row and into the next one's beginning.
  TensorView wrapped = Slice(matrix, 1, 9, 3);
  wrapped.shape[1] = 6;
  wrapped.shape[0] = 4;
  EXPECT_TRUE(MayOverlap(wrapped, left));
}

TEST(TensorView, MayOverlapComparesExtentsOtherwise) {
  std::vector<float> memory(60);
  const TensorView matrix = MakeView(memory.data(), DType::kF32, {}, 5, 12);
  EXPECT_FALSE(MayOverlap(Slice(matrix, 0, 0, 2), Slice(matrix, 0, 2, 3)));
  EXPECT_TRUE(MayOverlap(Slice(matrix, 0, 0, 3), Slice(matrix, 0, 2, 3)));
  EXPECT_FALSE(MayOverlap(Slice(matrix, 0, 0, 0), matrix));
  TensorView elsewhere = matrix;
  elsewhere.device.index = 1;
  EXPECT_FALSE(MayOverlap(matrix, elsewhere));
}

}  // namespace
}  // namespace stoch
