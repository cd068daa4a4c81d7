// SPDX-License-Identifier: Apache-2.0
#include "kernels/wrappers/blocking_backend.h"

#include <string>

#include "kernels/base/device_fault.h"
#include "kernels/base/error.h"
#include "kernels/call_check.h"

namespace stoch {

template <class Op>
void BlockingBackend::Wait(const OpSite& site, const Op& op) {
  if (!blocks_) return op();
  const auto named = [&site](const std::exception& error) { return SiteName(site) + ": " + error.what(); };
  try {
    op();
    for (const Device& device : devices()) Synchronize(device);
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(named(error));
  } catch (const DeviceRefusal& error) {
    throw DeviceRefusal(named(error));
  } catch (const DeviceError& error) {
    throw DeviceError(named(error));
  }
}

void BlockingBackend::Copy(const TensorView& to, const TensorView& from) {
  Wait({-1, "copy"}, [&] { inner().Copy(to, from); });
}

void BlockingBackend::UploadPass(Pass& pass, const PassLayout& layout) {
  Wait({-1, "upload"}, [&] { inner().UploadPass(pass, layout); });
}

void BlockingBackend::Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) {
  Wait({-1, "embed"}, [&] { inner().Embed(table, pass, out); });
}

#define OP(Op)                                     \
  void BlockingBackend::Op(const Op##Call& call) { \
    if (blocks_ && RunApart(call)) return;         \
    Wait(call.site, [&] { inner().Op(call); });    \
  }
STOCH_FOR_EACH_OP(OP)
OP(AllGather)
#undef OP

void BlockingBackend::SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) {
  Wait({-1, "select_rows"}, [&] { inner().SelectRows(pass, x, out); });
}

void BlockingBackend::Argmax(const TensorView& logits, const TensorView& ids) {
  Wait({-1, "argmax"}, [&] { inner().Argmax(logits, ids); });
}

void BlockingBackend::UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries) {
  Wait({-1, "upload"}, [&] { inner().UploadLogitQueries(buffer, queries); });
}

void BlockingBackend::PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) {
  Wait({-1, "pick_tokens"}, [&] { inner().PickTokens(logits, buffer, range); });
}

void BlockingBackend::LogProbs(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) {
  Wait({-1, "logprobs"}, [&] { inner().LogProbs(logits, buffer, range); });
}

void BlockingBackend::RunGraph(std::span<const Device> devices, std::string_view key,
                               const std::function<void()>& body) {
  if (blocks_) return body();
  inner().RunGraph(devices, key, body);
}

}  // namespace stoch
