// SPDX-License-Identifier: Apache-2.0
#include "engine/kl_divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <span>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/temp_dir.h"

namespace stoch {
namespace {

// Two rows over two tokens with simple odds.
const std::vector<float> kBase = {0.0f, 0.0f, std::log(3.0f), 0.0f};
const std::vector<float> kOther = {std::log(3.0f), 0.0f, std::log(3.0f), 0.0f};
const std::vector<int32_t> kTargets = {0, 1};

TEST(KlStatistics, MatchesHandComputedDivergence) {
  KlStatistics statistics;
  statistics.Add(kBase, kOther, kTargets);
  const KlSummary summary = statistics.Summary();
  // Row 0: p_base = (1/2, 1/2), p = (3/4, 1/4). Row 1: equal.
  const double kld = 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25);
  EXPECT_EQ(summary.rows, 2);
  EXPECT_NEAR(summary.kld.mean, kld / 2, 1e-6);
  EXPECT_NEAR(summary.kld.error, kld / 2, 1e-6);  // two values: half their distance
  EXPECT_NEAR(summary.dp.mean, 0.125, 1e-6);
  EXPECT_NEAR(summary.rms_dp.mean, std::sqrt(0.0625 / 2), 1e-6);
  EXPECT_NEAR(summary.nll_base.mean, (std::log(2.0) + std::log(4.0)) / 2, 1e-6);
  EXPECT_NEAR(summary.nll.mean, (std::log(4.0 / 3) + std::log(4.0)) / 2, 1e-6);
  EXPECT_NEAR(summary.log_ppl_ratio.mean, std::log(2.0 / 3) / 2, 1e-6);
  EXPECT_NEAR(summary.kld_percentiles.front(), 0, 1e-6);
  EXPECT_NEAR(summary.kld_percentiles.back(), kld, 1e-6);
  EXPECT_EQ(summary.same_top.mean, 1);  // the tie goes to id 0
  EXPECT_NEAR(summary.correlation, 1, 1e-9);
}

// Rows that threads share add up to the bits of rows that come alone.
TEST(KlStatistics, RowsTogetherAreRowsAlone) {
  constexpr size_t kRows = 53;
  constexpr size_t kVocab = 301;
  std::vector<float> base, ours;
  std::vector<int32_t> targets;
  for (size_t i = 0; i < kRows * kVocab; ++i) {
    base.push_back(static_cast<float>((i * 7919 + 13) % 1009) / 100.0f);
    ours.push_back(static_cast<float>((i * 6101 + 29) % 997) / 90.0f);
  }
  KlStatistics together, alone;
  for (size_t i = 0; i < kRows; ++i) {
    targets.push_back(static_cast<int32_t>(i * 5 % kVocab));
    alone.Add(std::span(base).subspan(i * kVocab, kVocab), std::span(ours).subspan(i * kVocab, kVocab),
              std::span(targets).subspan(i, 1));
  }
  together.Add(base, ours, targets);
  const KlSummary a = together.Summary();
  const KlSummary b = alone.Summary();
  EXPECT_EQ(a.rows, static_cast<int64_t>(kRows));
  EXPECT_GT(a.kld.mean, 0);
  EXPECT_EQ(a.kld.mean, b.kld.mean);
  EXPECT_EQ(a.kld_percentiles, b.kld_percentiles);
  EXPECT_EQ(a.dp_percentiles, b.dp_percentiles);
  EXPECT_EQ(a.nll.mean, b.nll.mean);
  EXPECT_EQ(a.nll_base.mean, b.nll_base.mean);
  EXPECT_EQ(a.same_top.mean, b.same_top.mean);
}

TEST(KlBaseFile, GivesBackWhatWasWritten) {
  const test::TempDir folder;
  KlBaseWriter writer(folder / "base", 2);
  writer.Add(kBase, kTargets);
  writer.Add(kOther, kTargets);
  writer.Close();
  KlBaseReader reader(folder / "base", 2);
  EXPECT_EQ(reader.rows(), 4);
  std::vector<float> logits(4);
  reader.Read(kTargets, logits);
  EXPECT_EQ(logits, kBase);
  reader.Read(kTargets, logits);
  EXPECT_EQ(logits, kOther);
  EXPECT_THROW(reader.Read(kTargets, logits), InvalidInput);
}

TEST(KlBaseFile, RefusesOtherFilesTextsAndVocabularies) {
  const test::TempDir folder;
  std::vector<float> logits(4);
  {
    KlBaseWriter writer(folder / "base", 2);
    writer.Add(kBase, kTargets);
    // Not closed: the writer was cut off.
  }
  EXPECT_THROW(KlBaseReader(folder / "base", 2), InvalidInput);
  {
    KlBaseWriter writer(folder / "base", 2);
    writer.Add(kBase, kTargets);
    writer.Close();
  }
  EXPECT_THROW(KlBaseReader(folder / "base", 3), InvalidInput);
  KlBaseReader reader(folder / "base", 2);
  EXPECT_THROW(reader.Read(std::vector<int32_t>{1, 1}, logits), InvalidInput);
  const auto size = std::filesystem::file_size(folder / "base");
  for (const auto wrong : {size + 1, size - 1}) {
    std::filesystem::resize_file(folder / "base", wrong);
    EXPECT_THROW(KlBaseReader(folder / "base", 2), InvalidInput);
  }
  test::WriteFile(folder / "text", "these are no logits at all");
  EXPECT_THROW(KlBaseReader(folder / "text", 2), InvalidInput);
  EXPECT_THROW(KlBaseReader(folder / "missing", 2), InvalidInput);
  EXPECT_THROW(KlBaseWriter(folder / "no_such_folder/base", 2), InvalidInput);
}

TEST(KlBaseFile, SaysWhenTheDiskIsFull) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_THROW(
      {
        KlBaseWriter writer("/dev/full", 2);
        for (int i = 0; i < 10000; ++i) writer.Add(kBase, kTargets);
        writer.Close();
      },
      InvalidInput);
}

}  // namespace
}  // namespace stoch
