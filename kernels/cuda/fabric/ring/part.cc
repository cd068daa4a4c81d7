// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/ring/part.h"

#include <algorithm>
#include <string>

#include "kernels/call_check.h"
#include "kernels/cuda/attention/dealt.h"
#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/attention/shape.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/fabric/ring/window.h"

namespace stoch::cuda {
namespace {

AttentionArgs ArgsOfPart(const RingPart& part) {
  PassView pass = part.pass->view();
  pass.positions = part.rows.positions;
  pass.row_sequence = part.rows.row_sequence;
  pass.rows = part.rows.rows;
  pass.pages = part.rows.pages;
  AttentionArgs args = ArgsOf(*part.ctx, *part.call, *part.cache, pass);
  args.rope_stripe = StripeView(part.stripe);
  return args;
}

}  // namespace

std::vector<RingPart> MakeRingParts(const std::vector<DeviceContext*>& contexts, const RingAttentionCall& call) {
  std::vector<RingPart> parts;
  for (size_t i = 0; i < contexts.size(); ++i) {
    const AttentionCall& own = call.parts[i];
    const TensorView& memory = call.scratch[i];
    RingPart part{contexts[i],
                  &own,
                  static_cast<const CudaKvCache*>(own.cache),
                  static_cast<const CudaPass*>(own.pass),
                  memory.ptr<uint8_t>(),
                  {static_cast<int>(i), static_cast<int>(contexts.size())}};
    const RingPlaces places = part.places();
    if (memory.bytes() < places.total() || !memory.is_dense()) {
      Reject(call.site, "scratch of " + std::to_string(memory.bytes()) + " bytes on " + DeviceName(memory.device) +
                            ", expected " + std::to_string(places.total()));
    }
    part.dealt = DealPass(part.pass->layout(), part.stripe);
    part.rows = places.dealt(part.scratch);
    part.args = ArgsOfPart(part);
    parts.push_back(std::move(part));
  }
  return parts;
}

void DealRows(const std::vector<RingPart>& parts, std::vector<DealtKey>& known) {
  known.resize(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const RingPart& part = parts[i];
    const DealtKey key{part.pass->upload(), part.scratch};
    if (known[i] == key) continue;
    known[i] = {};
    DeviceGuard guard(part.ctx->device);
    const PassView& pass = part.pass->view();
    if (part.args.rows > 0) {
      int64_t most = 0;
      for (const DealtRows& rows : part.dealt) most = std::max<int64_t>(most, rows.num_rows);
      LaunchDeal(*part.ctx, pass, static_cast<int64_t>(part.dealt.size()), most,
                 part.pass->limits().max_pages_per_sequence, part.cache->spec().page_tokens, part.stripe, part.rows);
    }
    if (part.cache->spec().mode != AttentionMode::kExact) {
      LaunchListQueries(*part.ctx, pass, part.pass->rows(), StripeView(part.stripe),
                        part.places().queries(part.scratch));
    }
    known[i] = key;
  }
}

void AppendKeys(const RingPart& part) {
  if (part.args.rows == 0) return;
  DeviceGuard guard(part.ctx->device);
  AttentionArgs keys = part.args;
  if (part.cache->spec().mode == AttentionMode::kExact) {
    return LaunchAppendValues(*part.ctx, keys, false, part.rows.slots);  // also rotates the queries (RoPE)
  }
  keys.num_heads = 0;
  const int layer = part.call->cache_layer;
  if (part.cache->shape(layer).lengths != AttentionLengths::kUniform) {
    return LaunchPlainAppend(*part.ctx, keys, *part.call, *part.cache->mixed(layer), part.rows.slots);
  }
  const ScTables& qk = part.ctx->tables.Get(part.cache->qk(layer));
  const ScTables& av = part.ctx->tables.Get(part.cache->av(layer));
  LaunchAppendCodes(*part.ctx, keys, qk.q_max, av.q_max, {}, part.rows.slots);
}

}  // namespace stoch::cuda
