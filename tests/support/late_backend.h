// SPDX-License-Identifier: Apache-2.0
// A device that is ahead of its host, as a GPU is: one of its ops fails or never ends, and who waits next hears of it or
// waits for ever.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

#include "kernels/base/error.h"
#include "kernels/wrappers/forwarding_backend.h"

namespace stoch::test {

class LateBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  int64_t fail_at = 0;  // op number, from 1
  int64_t ops = 0;
  bool hangs = false;    // instead of failing
  bool is_told = false;  // which op runs can be asked
  std::optional<OpSite> failed;
  std::function<void(const OpSite& site)> on_failure;  // called when it fails, before anybody hears of it

#define OP(Op) \
  void Op(const Op##Call& call) override { Count(call.site), inner().Op(call); }
  STOCH_FOR_EACH_OP(OP)
#undef OP
  void Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) override {
    Count({-1, "embed"}), inner().Embed(table, pass, out);
  }
  void PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override {
    Count({-1, "pick_tokens"}), inner().PickTokens(logits, buffer, range);
  }
  std::optional<OpSite> RunningSite() const override { return is_told && has_failed_ ? failed : std::nullopt; }
  void Synchronize(Device device) override { Hear(), inner().Synchronize(device); }
  void CopyToHost(void* to, const TensorView& from) override { Hear(), inner().CopyToHost(to, from); }
  void CheckFinite(Device device) override { Hear(), inner().CheckFinite(device); }

 private:
  void Count(const OpSite& site) {
    if (++ops != fail_at) return;
    failed = site;
    has_failed_ = true;
    if (on_failure) on_failure(site);
  }
  void Hear() const {
    while (failed && hangs) pause();
    if (failed) throw DeviceError("an illegal memory access was encountered");
  }

  std::atomic<bool> has_failed_ = false;
};

}  // namespace stoch::test
