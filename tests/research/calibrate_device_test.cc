// SPDX-License-Identifier: Apache-2.0
// Calibration on a device that shows no operands: the same operands, and so the same files, as on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
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
#include "tests/support/expect_invalid.h"
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
    if (call.site.op == "router") return;  // part of another op where it is not shown
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

  static TinyModel Sparse(int64_t experts, int64_t top_k) {
    TinyModel model;
    model.config.architecture = FindArchitecture("qwen3_moe");
    model.config.num_experts = experts;
    model.config.num_experts_per_tok = top_k;
    model.config.moe_intermediate_size = 48;
    model.config.sparse_layers = {true, true};
    return model;
  }
  void UseExperts(int64_t experts, int64_t top_k) {
    experts_ = experts;
    WriteTinyModel(scratch_.path(), Sparse(experts, top_k));
  }
  // One expert, which is a dense model in other words: its tensors under both names.
  void UseOneExpert() {
    experts_ = 1;
    TinyModel dense;
    dense.config.architecture = FindArchitecture("qwen3");
    dense.config.intermediate_size = 48;
    WriteTinyModel(dense_.path(), dense);
    WriteTinyModel(scratch_.path(), Sparse(1, 1), [&](std::vector<StoredTensor>& tensors) {
      std::map<std::string, StoredTensor> by_name;
      for (StoredTensor& tensor : TinyModelTensors(dense)) {
        std::string name = tensor.name;
        const size_t mlp = name.find("mlp.");
        if (mlp != std::string::npos) name.insert(mlp + 4, "experts.0.");
        by_name[name] = tensor;
      }
      for (StoredTensor& tensor : tensors) {
        const auto found = by_name.find(tensor.name);
        if (found != by_name.end()) tensor.bytes = found->second.bytes;
      }
    });
  }

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
    const ScaleMethod last = experts_ > 0 ? ScaleMethod::kSmoothQuant : ScaleMethod::kAwq;
    for (const ScaleMethod method : {ScaleMethod::kSmoothQuant, ScaleMethod::kAwq}) {
      if (method > last) continue;
      scales.method = method;
      auto smooth = std::make_shared<SmoothFile>();
      std::string& bytes = files[method == ScaleMethod::kAwq ? "awq" : "smoothquant"];
      for (const auto& [name, values] : CalibrateScales(scales, backend, model(), ids)) {
        bytes += name;
        bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
        smooth->scales[name.substr(name.find('.') + 1)] = values;
      }
      if (method == last) {
        lengths("smoothed", [&](LengthCalibration* to) { to->sc.files.smooth = smooth; });
        lengths("smoothed chunks",
                [&](LengthCalibration* to) { to->sc.files.smooth = smooth, to->chunks = true, to->protect = 0.05; });
      }
    }
    files["rescaled"] = RescaleTable({{70, 2, threads}, HalvedScModelConfig()}, files.at("protect"), "table", {},
                                     backend, model(), ids);
    return files;
  }

  TempDir scratch_, dense_;
  int64_t experts_ = 0;
};

TEST_P(CalibrateDevice, SeesWhatTheCpuSees) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  ExpectSame(Observed(Cpu(), model()), Observed(std::make_shared<BlindBackend>(backend), model()));
}

TEST_P(CalibrateDevice, SeesHeadsWithNormsAndBiases) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  STOCH_REQUIRE_SHARED();
  for (const char* family : {"tiny-qwen2", "tiny-qwen3", "tiny-mistral", "tiny-qwen3-moe"}) {
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

TEST_P(CalibrateDevice, WritesTheFilesOfTheCpuForExperts) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  UseExperts(5, 2);
  ExpectSame(Observed(Cpu(), model()), Observed(std::make_shared<BlindBackend>(backend), model()));
  const std::map<std::string, std::string> expected = Files(Cpu(), 1);
  const std::map<std::string, std::string> files = Files(std::make_shared<BlindBackend>(backend), 3);
  ASSERT_EQ(expected.size(), files.size());
  for (const auto& [name, text] : expected) EXPECT_TRUE(text == files.at(name)) << name;
  EXPECT_NE(expected.at("protect").find("\"down_proj:b1:u4\""), std::string::npos);
  ScaleCalibration awq;
  awq.ctx = 70;
  awq.windows = 2;
  awq.method = ScaleMethod::kAwq;
  ExpectInvalid([&] { CalibrateScales(awq, backend, model(), Ids(200)); }, {"experts", "smoothquant"});
}

// One expert is a dense linear: the same rows are sampled, and the same is found.
TEST_P(CalibrateDevice, OneExpertIsADenseModel) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  UseOneExpert();
  const std::vector<int32_t> ids = Ids(200);
  LengthCalibration calibration;
  calibration.windows = {70, 2, 2};
  calibration.levels = {128, 48, 16};
  calibration.budget = 0.4;
  // gate_proj and up_proj are fitted together here, so a dense model of one bucket fits otherwise: nothing of them.
  calibration.weights = {{"gate_proj", 0}, {"up_proj", 0}};
  ScaleCalibration scales;
  scales.ctx = 70;
  scales.windows = 2;
  const CalibratedLengths sparse = CalibrateLengths(calibration, backend, model(), ids);
  const CalibratedLengths dense = CalibrateLengths(calibration, backend, dense_.path().string(), ids);
  for (const char* op : {"q_proj", "o_proj", "down_proj", "gate_proj"}) {
    const std::string key = std::string(op) + ":t0:l0";
    EXPECT_EQ(sparse.table.buckets.at(key).metric_lo, dense.table.buckets.at(key).metric_lo) << op;
    EXPECT_EQ(sparse.table.buckets.at(key).metric_hi, dense.table.buckets.at(key).metric_hi) << op;
    EXPECT_EQ(sparse.fidelity.at(op).has_value(), true) << op;
    if (std::string(op) != "gate_proj") {
      EXPECT_EQ(sparse.fidelity.at(op), dense.fidelity.at(op)) << op;
    }
    EXPECT_EQ(sparse.table.buckets.at(key).thresholds, dense.table.buckets.at(key).thresholds) << op;
  }
  EXPECT_EQ(sparse.table.buckets.at("up_proj:t0:l0").thresholds, sparse.table.buckets.at("gate_proj:t0:l0").thresholds);
  EXPECT_EQ(CalibrateScales(scales, backend, model(), ids),
            CalibrateScales(scales, backend, dense_.path().string(), ids));
}

// Experts in the other order are the same model, whose pairs are all sampled here: each is multiplied by its own matrix.
TEST_P(CalibrateDevice, ExpertsMayComeInAnyOrder) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr int64_t kExperts = 4;
  UseExperts(kExperts, 2);
  TempDir reversed;
  WriteTinyModel(reversed.path(), Sparse(kExperts, 2), [&](std::vector<StoredTensor>& tensors) {
    std::map<std::string, StoredTensor> by_name;
    for (const StoredTensor& tensor : tensors) by_name[tensor.name] = tensor;
    for (StoredTensor& tensor : tensors) {
      const size_t at = tensor.name.find("experts.");
      if (at != std::string::npos) {
        std::string name = tensor.name;
        name[at + 8] = static_cast<char>('0' + kExperts - 1 - (name[at + 8] - '0'));
        tensor.bytes = by_name.at(name).bytes;
      } else if (tensor.name.ends_with("mlp.gate.weight")) {
        const size_t row = tensor.bytes.size() / kExperts;
        for (size_t e = 0; e < kExperts; ++e) {
          std::copy_n(by_name.at(tensor.name).bytes.begin() + static_cast<std::ptrdiff_t>((kExperts - 1 - e) * row),
                      row, tensor.bytes.begin() + static_cast<std::ptrdiff_t>(e * row));
        }
      }
    }
  });
  LengthCalibration calibration;
  calibration.windows = {30, 2, 2};  // 60 pairs a call
  calibration.levels = {128, 48, 16};
  calibration.budget = 0.4;
  const CalibratedLengths one = CalibrateLengths(calibration, backend, model(), Ids(100));
  const CalibratedLengths other = CalibrateLengths(calibration, backend, reversed.path().string(), Ids(100));
  for (const char* op : {"q_proj", "gate_proj", "down_proj"}) {
    EXPECT_TRUE(one.fidelity.at(op).has_value()) << op;
    EXPECT_NEAR(one.fidelity.at(op).value_or(0), other.fidelity.at(op).value_or(0), 1e-12) << op;
    const std::string key = std::string(op) + ":t0:l0";
    EXPECT_EQ(one.table.buckets.at(key).thresholds, other.table.buckets.at(key).thresholds) << op;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CalibrateDevice, testing::ValuesIn(OneOfEachBackend()),
                         [](const auto& backend) { return backend.param.Name(); });

}  // namespace
}  // namespace stoch::test
