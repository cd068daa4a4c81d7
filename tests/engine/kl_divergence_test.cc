// SPDX-License-Identifier: Apache-2.0
#include "engine/kl_divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <span>
#include <vector>

#include "engine/logprobs.h"
#include "kernels/base/error.h"
#include "tests/kernels/device_tensor.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"

namespace stoch {
namespace {

// Two rows over two tokens with simple odds.
const std::vector<float> kBase = {0.0f, 0.0f, std::log(3.0f), 0.0f};
const std::vector<float> kOther = {std::log(3.0f), 0.0f, std::log(3.0f), 0.0f};
const std::vector<int32_t> kTargets = {0, 1};
constexpr double kRecordedKld = 0x1.1c819cbfe7a8fp+2;  // 4.445

using test::DeviceTensor;

class KlComparisonTest : public testing::TestWithParam<test::BackendUnderTest> {};

TEST_P(KlComparisonTest, MatchesHandComputedDivergence) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const DeviceTensor base(*backend, {2, 2}, kBase), other(*backend, {2, 2}, kOther);
  KlComparison comparison(*backend, 2);
  comparison.Add(base.view(), other.view(), kTargets);
  const KlSummary summary = comparison.Summary();
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

// Rows from a file, more than the device keeps at once, in one call or one by one, are rows that lie there: to the bit,
// on every backend, and that of a host that sums nothing but answers.
TEST_P(KlComparisonTest, RowsOfAFileAreRowsThatLieThere) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kVocab = 301;
  const int64_t rows = 2 * KlUploadRows(kVocab) + 53;
  ASSERT_EQ(KlUploadRows(kVocab), 1024);
  std::vector<float> base, ours;
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < rows * kVocab; ++i) {
    base.push_back(static_cast<float>((i * 7919 + 13) % 1009) / 100.0f);
    ours.push_back(static_cast<float>((i * 6101 + 29) % 997) / 90.0f);
  }
  for (int64_t i = 0; i < rows; ++i) targets.push_back(static_cast<int32_t>(i * 5 % kVocab));
  const test::TempDir folder;
  KlBaseWriter writer(folder / "base", kVocab);
  const DeviceTensor on_device(*backend, {rows, kVocab}, ours), lying(*backend, {rows, kVocab}, base);
  writer.Add(*backend, lying.view(), targets);
  writer.Close();

  const auto bits = [](const KlSummary& of) {
    std::vector<double> values = of.kld_percentiles;
    values.insert(values.end(), of.dp_percentiles.begin(), of.dp_percentiles.end());
    for (const MeanError& one : {of.nll, of.nll_base, of.kld, of.dp, of.same_top}) {
      values.insert(values.end(), {one.mean, one.error});
    }
    return values;
  };
  KlComparison there(*backend, kVocab), from_file(*backend, kVocab), alone(*backend, kVocab);
  there.Add(lying.view(), on_device.view(), targets);
  KlBaseReader reader(folder / "base", kVocab), again(folder / "base", kVocab);
  from_file.Add(reader, on_device.view(), targets);
  for (int64_t i = 0; i < rows; ++i) {
    alone.Add(again, Slice(on_device.view(), 0, i, 1), std::span(targets).subspan(static_cast<size_t>(i), 1));
  }
  const KlSummary summary = there.Summary();
  EXPECT_EQ(summary.rows, rows);
  EXPECT_EQ(bits(from_file.Summary()), bits(summary));
  EXPECT_EQ(bits(alone.Summary()), bits(summary));

  // Log-probabilities are those of the host's rows.
  double nll = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const std::span<const float> row = std::span(ours).subspan(i * kVocab, kVocab);
    nll -= ComputeLogSum(row).LogProb(row[static_cast<size_t>(targets[i])]);
  }
  EXPECT_EQ(summary.nll.mean, nll / static_cast<double>(rows));
  // Recorded of this definition: every backend and build.
  EXPECT_EQ(summary.kld.mean, kRecordedKld);
}

TEST_P(KlComparisonTest, NamesAPredictionThatIsNotFinite) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  std::vector<float> bad = kBase;
  bad[3] = std::numeric_limits<float>::quiet_NaN();
  const DeviceTensor base(*backend, {2, 2}, kBase), broken(*backend, {2, 2}, bad);
  KlComparison comparison(*backend, 2);
  comparison.Add(base.view(), base.view(), kTargets);
  test::ExpectInvalid([&] { comparison.Add(broken.view(), base.view(), kTargets); }, {"prediction 3", "base logits"});
  KlComparison other(*backend, 2);
  test::ExpectInvalid([&] { other.Add(base.view(), broken.view(), kTargets); }, {"prediction 1: its logits"});
  test::ExpectInvalid([&] { other.Add(base.view(), base.view(), std::vector<int32_t>{0, 2}); }, {"token id 2"});
}

INSTANTIATE_TEST_SUITE_P(Backends, KlComparisonTest, testing::ValuesIn(test::BackendsUnderTest()),
                         [](const auto& backend) { return backend.param.Name(); });

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

TEST(KlBaseFile, SaysWhatItIsOf) {
  const test::TempDir folder;
  const KlBaseOrigin origin{"stoch 9", std::string(64, 'a'), IdsDigest(kTargets), "fp32", 16};
  KlBaseWriter writer(folder / "base", 2, origin);
  writer.Add(kBase, kTargets);
  writer.Add(kOther, kTargets);
  writer.Close();
  KlBaseReader reader(folder / "base", 2);
  EXPECT_EQ(reader.rows(), 4);
  EXPECT_EQ(reader.origin().version, origin.version);
  EXPECT_EQ(reader.origin().model_sha256, origin.model_sha256);
  EXPECT_EQ(reader.origin().ids_sha256, "01acecb507abfe1a354aa8064f4af5d3f1acd019e37db3c11c97523b71c76e9d");
  EXPECT_EQ(reader.origin().config, "fp32");
  EXPECT_EQ(reader.origin().ctx, 16);
  std::vector<float> logits(4);
  reader.Seek(2);
  reader.Read(kTargets, logits);
  EXPECT_EQ(logits, kOther);
  reader.Seek(0);
  reader.Read(kTargets, logits);
  EXPECT_EQ(logits, kBase);
  reader.Seek(4);
  EXPECT_THROW(reader.Read(kTargets, logits), InvalidInput);
}

// As files were written before they said what they are of.
TEST(KlBaseFile, ReadsFilesWithoutAnOrigin) {
  const test::TempDir folder;
  std::string bytes = "STOCHKL1";
  const auto add = [&](const auto& value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  add(int64_t{2});
  add(int64_t{1});
  add(int32_t{1});
  add(1.5F);
  add(-2.5F);
  test::WriteFile(folder / "base", bytes);
  KlBaseReader reader(folder / "base", 2);
  EXPECT_EQ(reader.origin().model_sha256, "");
  std::vector<float> logits(2);
  reader.Read(std::vector<int32_t>{1}, logits);
  EXPECT_EQ(logits, (std::vector<float>{1.5F, -2.5F}));
}

TEST(KlBaseFile, RefusesOriginsThatAreNone) {
  const test::TempDir folder;
  const auto refused = [&](int64_t bytes, const std::string& origin) {
    std::string text = "STOCHKL2" + std::string(16, '\1');
    text[8] = 2;
    std::fill(text.begin() + 9, text.begin() + 16, '\0');
    text.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    test::WriteFile(folder / "base", text + origin);
    test::ExpectInvalid([&] { KlBaseReader(folder / "base", 2); }, {"what its base logits are of"});
  };
  refused(2, "{");
  refused(-1, "{}");
  refused(int64_t{1} << 40, "{}");
  refused(2, "{}");
  refused(2, "[]");
  refused(13, R"({"version":1})");
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
