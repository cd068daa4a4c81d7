// SPDX-License-Identifier: Apache-2.0
// Calibration on a device that shows no operands: the same operands, and so the same files, as on the CPU.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/wrappers/forwarding_backend.h"
#include "loader/research/smooth_file.h"
#include "research/calibrate/calibrate_lengths.h"
#include "research/calibrate/calibrate_scales.h"
#include "research/calibrate/exact_windows.h"
#include "research/calibrate/mp_table.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

// The CPU as a device whose memory nobody looks into.
class BlindBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  bool Observe(OpObserver* observer) override { return observer == nullptr; }
};

std::shared_ptr<Backend> Cpu() { return OpenBackend("cpu", {2, ""}, nullptr); }

std::vector<int32_t> Ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * i * 7 + i * 37 + 5) % 96));
  return ids;
}

// Everything that is shown, as it comes.
struct Shown final : OpObserver {
  std::vector<std::pair<std::string, std::vector<float>>> values;

  void OnLinear(const LinearCall& call, const float* x, int64_t rows, int64_t cols, int64_t stride) override {
    std::vector<float>& to = Add(call.site);
    for (int64_t i = 0; i < rows; ++i) to.insert(to.end(), x + i * stride, x + i * stride + cols);
  }
  void OnAttention(const AttentionCall& call, const PassLayout& layout) override {
    for (const TensorView& view : {call.q, call.k, call.v}) {
      std::vector<float>& to = Add(call.site);
      for (int64_t i = 0; i < view.dim(0); ++i) {
        const float* row = view.ptr<const float>() + i * view.step(0);
        to.insert(to.end(), row, row + view.dim(1));
      }
    }
    const PassLayout::Sequence& sequence = layout.sequences.at(0);
    Add(call.site) = {static_cast<float>(sequence.num_rows), static_cast<float>(sequence.start_position),
                      static_cast<float>(sequence.pages.size()), static_cast<float>(sequence.pages.front())};
  }

 private:
  std::vector<float>& Add(const OpSite& site) {
    return values.emplace_back(std::to_string(site.layer) + '.' + std::string(site.op), std::vector<float>()).second;
  }
};

std::vector<std::pair<std::string, std::vector<float>>> Observed(const std::shared_ptr<Backend>& backend,
                                                                 const std::string& model) {
  Shown shown;
  ObserveExactWindows({40, 2, 3}, backend, model, Ids(100), &shown);
  return shown.values;
}

void ExpectSame(const std::vector<std::pair<std::string, std::vector<float>>>& a,
                const std::vector<std::pair<std::string, std::vector<float>>>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].first, b[i].first) << i;
    ASSERT_EQ(a[i].second.size(), b[i].second.size()) << a[i].first;
    EXPECT_EQ(std::memcmp(a[i].second.data(), b[i].second.data(), a[i].second.size() * sizeof(float)), 0) << a[i].first;
  }
}

class CalibrateDevice : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override { WriteTinyModel(scratch_.path(), {}); }
  std::string model() const { return scratch_.path().string(); }

  // Files of every kind, by name.
  std::map<std::string, std::string> Files(const std::shared_ptr<Backend>& backend, int threads) {
    const std::vector<int32_t> ids = Ids(200);
    std::map<std::string, std::string> files;
    const auto lengths = [&](const std::string& name, const std::function<void(LengthCalibration*)>& edit) {
      LengthCalibration calibration;
      calibration.windows = {70, 2, threads};
      calibration.levels = {128, 48, 16};
      calibration.budget = 0.4;
      calibration.layer_buckets = 2;
      edit(&calibration);
      files[name] = MpTableJson(CalibrateLengths(calibration, backend, model(), ids), {});
    };
    lengths("rows", [](LengthCalibration*) {});
    lengths("chunks", [](LengthCalibration* to) { to->chunks = true; });
    lengths("protect", [](LengthCalibration* to) { to->protect = 0.03, to->metric = "l2"; });
    lengths("pruned", [](LengthCalibration* to) {
      to->levels = {64, 0}, to->metric = "crest", to->budget = 0.7;
      to->sc.attention = AttentionMode::kExact;
    });
    lengths("per_row", [](LengthCalibration* to) { to->sc.attention = AttentionMode::kPerRow, to->sign = -1; });
    ScaleCalibration scales;
    scales.ctx = 70;
    scales.windows = 2;
    scales.threads = threads;
    for (const ScaleMethod method : {ScaleMethod::kSmoothQuant, ScaleMethod::kAwq}) {
      scales.method = method;
      auto smooth = std::make_shared<SmoothFile>();
      std::string& bytes = files[method == ScaleMethod::kAwq ? "awq" : "smoothquant"];
      for (const auto& [name, values] : CalibrateScales(scales, backend, model(), ids)) {
        bytes += name;
        bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
        smooth->scales[name.substr(name.find('.') + 1)] = values;
      }
      if (method == ScaleMethod::kAwq) {
        lengths("smoothed", [&](LengthCalibration* to) { to->sc.files.smooth = smooth; });
        lengths("smoothed chunks",
                [&](LengthCalibration* to) { to->sc.files.smooth = smooth, to->chunks = true, to->protect = 0.05; });
      }
    }
    files["rescaled"] = RescaleTable({{70, 2, threads}, HalvedScModelConfig()}, files.at("protect"), "table", {},
                                     backend, model(), ids);
    return files;
  }

 private:
  TempDir scratch_;
};

TEST_P(CalibrateDevice, SeesWhatTheCpuSees) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  ExpectSame(Observed(Cpu(), model()), Observed(std::make_shared<BlindBackend>(backend), model()));
}

TEST_P(CalibrateDevice, SeesHeadsWithNormsAndBiases) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  STOCH_REQUIRE_SHARED();
  for (const char* family : {"tiny-qwen2", "tiny-qwen3", "tiny-mistral"}) {
    const std::string folder = (SharedFolder() / "models" / family).string();
    ExpectSame(Observed(Cpu(), folder), Observed(std::make_shared<BlindBackend>(backend), folder));
  }
}

TEST_P(CalibrateDevice, WritesTheFilesOfTheCpu) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::map<std::string, std::string> expected = Files(Cpu(), 1);
  const std::map<std::string, std::string> files = Files(std::make_shared<BlindBackend>(backend), 3);
  ASSERT_EQ(expected.size(), files.size());
  for (const auto& [name, text] : expected) {
    EXPECT_GT(text.size(), 100u) << name;
    EXPECT_TRUE(text == files.at(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CalibrateDevice, testing::ValuesIn(OneOfEachBackend()),
                         [](const auto& backend) { return backend.param.Name(); });

}  // namespace
}  // namespace stoch::test
