// SPDX-License-Identifier: Apache-2.0
// How long a rank may say nothing, by its devices.

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "app/options/rank_options.h"

namespace stoch::cli {
namespace {

using std::chrono::seconds;

constexpr Device kCpu{DeviceKind::kCpu, 0}, kGpu{DeviceKind::kCuda, 0}, kOtherGpu{DeviceKind::kCuda, 1};

TEST(RankLimit, IsThatOfTheDevicesAndNotOfTheirOption) {
  EXPECT_EQ(RankLimit({}, std::vector{kGpu}), seconds(10));
  EXPECT_EQ(RankLimit({}, std::vector{kGpu, kOtherGpu}), seconds(10));
  EXPECT_EQ(RankLimit({}, std::vector{kCpu}), seconds(120));
  EXPECT_EQ(RankLimit({}, std::vector{kGpu, kCpu}), seconds(120));
  EXPECT_EQ(RankLimit({}, {}), seconds(120));  // not opened yet
}

TEST(RankLimit, IsTheGivenOneOnAllDevices) {
  RankOptions options;
  options.limit_s = 7;
  EXPECT_EQ(RankLimit(options, std::vector{kGpu}), seconds(7));
  EXPECT_EQ(RankLimit(options, std::vector{kCpu}), seconds(7));
  EXPECT_EQ(RankLimit(options, {}), seconds(7));
}

}  // namespace
}  // namespace stoch::cli
