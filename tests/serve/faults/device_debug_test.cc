// SPDX-License-Identifier: Apache-2.0
// What helps to find a device at fault: errors that name the very op, and transfers that are compared.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "engine/worker/marking_backend.h"
#include "kernels/base/error.h"
#include "kernels/call_check.h"
#include "kernels/registry.h"
#include "kernels/wrappers/blocking_backend.h"
#include "kernels/wrappers/verifying_backend.h"
#include "tests/support/late_backend.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

GenerateRequest Request() {
  GenerateRequest request;
  request.prompt = {5, 6, 7, 8};
  request.max_tokens = 2;
  request.ignore_eos = true;
  request.sampling.temperature = 1;
  return request;
}

class DeviceDebug : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(folder_.path(), {}); }
  ModelFiles Files() const { return OpenModelFiles(folder_.path().string()); }
  static std::shared_ptr<Backend> Cpu(const std::string& name) {
    return OpenBackend(name, {.threads = 1, .cpu_variant = ""}, nullptr);
  }

  // One run in which op `fail_at` fails. Returns the error and the mark of the op begun last.
  std::pair<std::string, std::string> Fail(int64_t fail_at, bool blocking, std::shared_ptr<LateBackend>* device) const {
    *device = std::make_shared<LateBackend>(Cpu("cpu"));
    std::shared_ptr<Backend> backend = *device;
    if (blocking) backend = std::make_shared<BlockingBackend>(backend);
    OpSite mark;
    backend = std::make_shared<serve::MarkingBackend>(backend, [&mark](const OpSite& site) { mark = site; });
    const auto engine = Engine::Open(backend, Files(), {});
    (*device)->fail_at = fail_at;
    (*device)->ops = 0;
    try {
      Generate(*engine, nullptr, Request());
    } catch (const DeviceError& error) {
      return {error.what(), SiteName(mark)};
    }
    return {"", ""};
  }

  TempDir folder_;
};

TEST_F(DeviceDebug, LaunchBlockingNamesTheOpThatFailed) {
  std::shared_ptr<LateBackend> device;
  EXPECT_EQ(Fail(0, true, &device).first, "");
  const int64_t ops = device->ops;
  ASSERT_GT(ops, 20);
  int64_t wrong = 0;
  for (int64_t op = 1; op <= ops; ++op) {
    const auto [error, mark] = Fail(op, true, &device);
    ASSERT_TRUE(device->failed) << op;
    const std::string site = SiteName(*device->failed);
    EXPECT_EQ(error, site + ": an illegal memory access was encountered") << op;
    EXPECT_EQ(mark, site) << op;
    EXPECT_EQ(device->ops, op);  // nothing was issued after it
    wrong += Fail(op, false, &device).second == site ? 0 : 1;
  }
  EXPECT_GT(wrong, ops / 2);  // else this shows nothing
}

// Two devices; in one of their transfers a bit flips on the way.
class FlippingDevice final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  int64_t flip_at = 0;  // transfer number, from 1
  int64_t transfers = 0;

  void AllGather(const AllGatherCall& call) override {
    inner().AllGather(call);
    if (++transfers != flip_at) return;
    // The last value came from the last device that gave any: where that is the first one, the other one has a copy.
    const TensorView& to = call.from.back().dim(1) > 0 ? call.to.front() : call.to.back();
    to.ptr<uint32_t>()[(to.dim(0) - 1) * to.step(0) + to.dim(1) - 1] ^= kBit;
  }
  void Copy(const TensorView& to, const TensorView& from) override {
    inner().Copy(to, from);
    if (to.device != from.device && ++transfers == flip_at) to.ptr<uint32_t>()[to.numel() - 1] ^= kBit;
  }

 private:
  static constexpr uint32_t kBit = 1u << 23;  // of the exponent: the value is another power of two times itself
};

TEST_F(DeviceDebug, VerifiedTransfersShowOneFlippedBit) {
  GenerateRequest request = Request();
  request.hash_logits = true;
  for (const bool by_rows : {true, false}) {
    const auto device = std::make_shared<FlippingDevice>(Cpu("cpu:2"));
    const auto open = [&](std::shared_ptr<Backend> backend) {
      ModelFiles files = Files();
      EngineOptions options;
      const Device first = backend->devices()[0], second = backend->devices()[1];
      options.placement =
          by_rows ? RowSplit(files.config, backend->devices()) : DecoderPlacement{first, {first, second}, second};
      return Engine::Open(std::move(backend), std::move(files), options);
    };
    const auto plain = open(device);
    const auto verified = open(std::make_shared<VerifyingBackend>(device));
    device->transfers = 0;
    const std::string expected = Generate(*plain, nullptr, request).logits_sha256;
    const int64_t transfers = device->transfers;
    ASSERT_GE(transfers, by_rows ? 10 : 2);
    EXPECT_EQ(Generate(*verified, nullptr, request).logits_sha256, expected);
    int64_t unseen = 0;
    for (device->flip_at = 1; device->flip_at <= transfers; ++device->flip_at) {
      device->transfers = 0;
      unseen += Generate(*plain, nullptr, request).logits_sha256 == expected ? 0 : 1;
      device->transfers = 0;
      try {
        Generate(*verified, nullptr, request);
        ADD_FAILURE() << "transfer " << device->flip_at;
      } catch (const DeviceError& error) {
        EXPECT_NE(std::string(error.what()).find("sent, the first one at row"), std::string::npos) << error.what();
      }
    }
    device->flip_at = 0;
    EXPECT_GT(unseen, 0);  // another answer, and nobody knows
  }
}

}  // namespace
}  // namespace stoch::test
