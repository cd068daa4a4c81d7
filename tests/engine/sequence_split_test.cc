// SPDX-License-Identifier: Apache-2.0
// Positions dealt over several devices give the bits of one: every length, cut and company, by the ring and by queries.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <thread>

#include "engine/placement.h"
#include "kernels/math/random.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

// ---------------------------------------------------------------------------------------------------- stripes ----

TEST(Stripes, EveryPositionHasOneOwnerAndLocalPositionsAreInOrder) {
  for (const int count : {1, 2, 4, 8}) {
    std::vector<int64_t> next(static_cast<size_t>(count), 0);
    for (int64_t t = 0; t < 300; ++t) {
      int owners = 0;
      for (int i = 0; i < count; ++i) {
        const Stripe stripe{i, count};
        EXPECT_EQ(stripe.Below(t), next[static_cast<size_t>(i)]) << t;
        if (!stripe.Owns(t)) continue;
        ++owners;
        EXPECT_EQ(stripe.Absolute(next[static_cast<size_t>(i)]++), t);
      }
      EXPECT_EQ(owners, 1);
    }
  }
  EXPECT_FALSE(IsStripeCount(3));
  EXPECT_FALSE(IsStripeCount(16));
}

TEST(Stripes, NoDeviceHasMoreRowsThanPlanned) {
  for (const int count : {1, 2, 4, 8}) {
    for (int32_t rows = 1; rows < 80; ++rows) {
      int64_t most = 0;
      for (int32_t start = 0; start < 16; ++start) {
        for (int32_t first = 1; first <= rows; ++first) {  // one sequence, or two
          PassLayout pass;
          pass.sequences.push_back({0, first, start, {}});
          if (first < rows) pass.sequences.push_back({first, rows - first, start, {}});
          for (int i = 0; i < count; ++i) {
            int64_t dealt = 0;
            for (const DealtRows& own : DealPass(pass, {i, count})) dealt += own.num_rows;
            most = std::max(most, dealt);
          }
        }
      }
      EXPECT_EQ(MaxDealtRows(rows, 2, count), most) << rows << " rows over " << count;
    }
  }
  EXPECT_EQ(MaxDealtRows(512, 1, 2), 256);
  EXPECT_EQ(MaxDealtRows(512, 1, 8), 64);
}

TEST(ParseSplit, NamesGroupsOfDevices) {
  const auto parsed = [](const char* split, size_t devices) {
    PlacementOptions options;
    ParseSplit("--split", split, devices, &options);
    return std::pair(options.by_rows, options.stripes);
  };
  EXPECT_EQ(parsed("layer", 3), std::pair(false, 1));
  EXPECT_EQ(parsed("row", 3), std::pair(true, 1));
  EXPECT_EQ(parsed("sequence", 1), std::pair(false, 1));
  EXPECT_EQ(parsed("sequence", 4), std::pair(false, 4));
  EXPECT_EQ(parsed("sequence:2", 2), std::pair(false, 2));
  EXPECT_EQ(parsed("sequence:2,row:2", 4), std::pair(false, 2));
  EXPECT_EQ(parsed("sequence:1,row:3", 3), std::pair(true, 1));
  ExpectInvalid([&] { parsed("sequence", 3); }, {"--split sequence", "1, 2, 4 or 8", "got 3"});
  ExpectInvalid([&] { parsed("sequence", 16); }, {"1, 2, 4 or 8", "got 16"});
  ExpectInvalid([&] { parsed("sequence:2,row:2", 2); }, {"4 devices", "--device names 2"});
  for (const char* wrong : {"diagonal", "sequence2", "sequence:", "sequence:0", "sequence:2,", "sequence:2,row",
                            "sequence:2,row:0", "sequence:2x", "sequence,row:2"}) {
    ExpectInvalid([&] { parsed(wrong, 2); }, {wrong, "layer, row, sequence or sequence:P,row:R"});
  }
}

// ----------------------------------------------------------------------------------------------------- models ----

struct Devices {
  BackendUnderTest backend;
  int stripes = 1;
};

class SequenceSplitBits : public testing::TestWithParam<Devices> {
 protected:
  static std::string Recorded(const LogitsModel& model, const LogitsConfig& config) {
    static const std::map<std::string, std::string> hashes = ReadRecordedHashes();
    const auto found = hashes.find(model.name + ' ' + config.name);
    return found == hashes.end() ? "not recorded" : found->second;
  }
  static std::unique_ptr<Engine> OpenDealt(const std::shared_ptr<Backend>& backend, const LogitsModel& model,
                                           const LogitsConfig& config) {
    ModelFiles files = OpenModelFiles(model.folder.string());
    EngineOptions options = OptionsOf(config);
    options.placement = SequenceSplit(files.config, backend->devices(), GetParam().stripes);
    return Engine::Open(backend, std::move(files), options);
  }
};

TEST_P(SequenceSplitBits, TinyModelMeetsTheConstantsOrIsRefusedByName) {
  STOCH_OPEN_OR_SKIP(backend, GetParam().backend);
  const TempDir scratch;
  const LogitsModel model = TinyLogitsModel(scratch.path());
  const std::map<std::string, const char*> refused = {
      {"halved_per_head", "attention=per_head"}, {"halved_per_row", "attention=per_row"},
      {"published", "attention=per_head"},       {"published_per_row", "attention=per_row"},
      {"per_tensor", "granularity=per_tensor"},  {"groups", "group_a=4"}};
  for (const LogitsConfig& config : LogitsConfigs()) {
    SCOPED_TRACE(config.name);
    if (const auto found = refused.find(config.name); found != refused.end()) {
      ExpectInvalid([&] { OpenDealt(backend, model, config); }, {"--split sequence", found->second});
      continue;
    }
    const auto engine = OpenDealt(backend, model, config);
    const std::string expected = Recorded(model, config);
    EXPECT_EQ(HashRun(*engine, model.prompt, {}), expected);
    EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks, true}), expected) << "in chunks, next to others";
  }
}

TEST_P(SequenceSplitBits, FamiliesMeetTheConstants) {
  STOCH_OPEN_OR_SKIP(backend, GetParam().backend);
  const TempDir scratch;
  for (const LogitsModel& model : RandomFamilyModels(scratch.path())) {
    for (const LogitsConfig& config : LogitsConfigs()) {
      if (!IsFamilyConfig(config) ||
          (config.precision == Precision::kSc &&
           !IsChunkInvariant(ParseScModelConfig(std::vector<std::string>{config.settings})))) {
        continue;
      }
      SCOPED_TRACE(model.name + ' ' + config.name);
      EXPECT_EQ(HashRun(*OpenDealt(backend, model, config), model.prompt, {}), Recorded(model, config));
    }
  }
}

TEST_P(SequenceSplitBits, TrainedModelsMeetTheConstants) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam().backend);
  const std::set<std::string> cross_section = {"fp32", "halved", "published_per_token"};
  for (const std::string& name : SharedLogitsModels()) {
    const LogitsModel model = SharedLogitsModel(name);
    for (const LogitsConfig& config : LogitsConfigs()) {
      if (!cross_section.contains(config.name)) continue;
      SCOPED_TRACE(name + ' ' + config.name);
      EXPECT_EQ(HashRun(*OpenDealt(backend, model, config), model.prompt, {}), Recorded(model, config));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SequenceSplitBits,
                         testing::Values(Devices{{"cpu:2", "", 1}, 2}, Devices{{"cpu:4", "", 1}, 4},
                                         Devices{{"cpu:8", "", 1}, 8}, Devices{{"cpu:4", "", 1}, 2}),
                         [](const auto& param) {
                           std::string name = param.param.backend.device;
                           name.replace(3, 1, "_");
                           return name + "_in_" + std::to_string(param.param.stripes);
                         });

}  // namespace
}  // namespace stoch::test
