// SPDX-License-Identifier: Apache-2.0
// What the environment takes away from a GPU for tests.
#include "kernels/plan/gpu_traits.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/base/error.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch {
namespace {

class LimitForTestsTest : public testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    unsetenv("STOCH_TEST_SHARED_BYTES");
    unsetenv("STOCH_TEST_NO_WGMMA");
    unsetenv("STOCH_TEST_NO_BMMA");
    unsetenv("STOCH_TEST_SCORE_BYTES");
    unsetenv("STOCH_TEST_PACKED_POSITIONS");
  }
};

TEST_F(LimitForTestsTest, NothingSetNothingTaken) {
  const GpuTraits traits = LimitForTests(test::H200());
  EXPECT_EQ(traits.max_shared_bytes, 232448);
  EXPECT_TRUE(traits.has_wgmma);
  EXPECT_FALSE(traits.is_limited);
}

TEST_F(LimitForTestsTest, SharedMemoryIsLoweredNeverRaised) {
  setenv("STOCH_TEST_SHARED_BYTES", "101376", 1);
  EXPECT_EQ(LimitForTests(test::H200()).max_shared_bytes, 101376);
  EXPECT_TRUE(LimitForTests(test::H200()).is_limited);
  EXPECT_TRUE(LimitForTests(test::H200()).has_clusters);
  setenv("STOCH_TEST_SHARED_BYTES", "999999", 1);
  EXPECT_EQ(LimitForTests(test::H200()).max_shared_bytes, 232448);
  EXPECT_FALSE(LimitForTests(test::H200()).is_limited);
  for (const char* bad : {"", "99KB", "-1", "1000", "0x20000"}) {
    setenv("STOCH_TEST_SHARED_BYTES", bad, 1);
    EXPECT_THROW(LimitForTests(test::H200()), InvalidInput) << bad;
  }
}

TEST_F(LimitForTestsTest, GroupsOfTilesGetSmaller) {
  setenv("STOCH_TEST_SCORE_BYTES", "1048576", 1);
  setenv("STOCH_TEST_PACKED_POSITIONS", "512", 1);
  EXPECT_EQ(LimitForTests(test::H200()).max_score_bytes, 1048576);
  EXPECT_EQ(LimitForTests(test::H200()).max_packed_positions, 512);
  setenv("STOCH_TEST_PACKED_POSITIONS", "0", 1);
  EXPECT_THROW(LimitForTests(test::H200()), InvalidInput);
}

TEST_F(LimitForTestsTest, WgmmaIsTakenAway) {
  setenv("STOCH_TEST_NO_WGMMA", "1", 1);
  EXPECT_FALSE(LimitForTests(test::H200()).has_wgmma);
  EXPECT_TRUE(LimitForTests(test::H200()).has_binary_mma);
  EXPECT_TRUE(LimitForTests(test::H200()).has_hopper_code);
}

TEST_F(LimitForTestsTest, WithoutBinaryMmaThereIsNoWgmma) {
  setenv("STOCH_TEST_NO_BMMA", "1", 1);
  EXPECT_FALSE(LimitForTests(test::H200()).has_binary_mma);
  EXPECT_FALSE(LimitForTests(test::H200()).has_wgmma);
  EXPECT_TRUE(LimitForTests(test::H200()).has_hopper_code);
}

}  // namespace
}  // namespace stoch
