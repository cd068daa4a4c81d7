// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "kernels/call_check.h"
#include "kernels/ring.h"
#include "kernels/ring_hop.h"

namespace stoch {
namespace {

void CheckSameCaches(const RingAttentionCall& call) {
  const KvCacheSpec& first = call.parts.front().cache->spec();
  const auto count = static_cast<int>(call.parts.size());
  switch (first.mode) {
    case AttentionMode::kExact:
    case AttentionMode::kPerToken: break;
    case AttentionMode::kPerHead:
    case AttentionMode::kPerRow:
      Reject(call.site, "per_head and per_row attention quantize whole windows, which no device of a ring has");
  }
  for (size_t i = 0; i < call.parts.size(); ++i) {
    const AttentionCall& part = call.parts[i];
    const KvCacheSpec& spec = part.cache->spec();
    const std::string where = "the cache on " + DeviceName(part.cache->device());
    if (spec.stripes != count) {
      Reject(call.site, where + " has positions of one of " + std::to_string(spec.stripes) + " devices, expected of " +
                            std::to_string(count));
    }
    if (spec.num_kv_heads != first.num_kv_heads || spec.head_dim != first.head_dim || spec.mode != first.mode ||
        spec.page_tokens != first.page_tokens || spec.num_pages != first.num_pages ||
        part.num_heads != call.parts.front().num_heads || part.cache_layer != call.parts.front().cache_layer ||
        part.window != call.parts.front().window || part.score_cap != call.parts.front().score_cap ||
        part.first_head != call.parts.front().first_head ||
        !std::equal(part.dilated.begin(), part.dilated.end(), call.parts.front().dilated.begin(),
                    call.parts.front().dilated.end())) {
      Reject(call.site, where + " or its call is of another shape than the first one");
    }
    for (size_t j = 0; j < i; ++j) {
      if (call.parts[j].cache->device() == part.cache->device()) {
        Reject(call.site, DeviceName(part.cache->device()) + " takes part twice");
      }
    }
  }
}

}  // namespace

LostHop MakeLostHop(const RingHop& hop, const char* what, int64_t limit_ms) {
  return LostHop(SiteName(hop.site) + ": hop " + std::to_string(hop.hop) + " of " + std::to_string(hop.hops) +
                     " from " + DeviceName(hop.from) + " to " + DeviceName(hop.to) + " " + what + " within " +
                     std::to_string(limit_ms) + " ms",
                 hop);
}

void CheckRingHandles(const RingAttentionCall& call) {
  if (!IsStripeCount(static_cast<int64_t>(call.parts.size())) || call.scratch.size() != call.parts.size()) {
    Reject(call.site, "a ring of " + std::to_string(call.parts.size()) + " devices with scratch on " +
                          std::to_string(call.scratch.size()) + ", expected 1, 2, 4 or 8 of both");
  }
  for (const AttentionCall& part : call.parts) CheckAttentionHandles(part);
}

void CheckRingAttention(const RingAttentionCall& call, const PassLayout& pass) {
  CheckSameCaches(call);
  const auto count = static_cast<int>(call.parts.size());
  for (int i = 0; i < count; ++i) {
    const AttentionCall& part = call.parts[static_cast<size_t>(i)];
    int64_t rows = 0;
    for (const DealtRows& dealt : DealPass(pass, {i, count})) rows += dealt.num_rows;
    CheckAttentionOperands(part, rows);
    for (const PassLayout::Sequence& sequence : pass.sequences) {
      CheckAttentionSequence(part, int64_t{sequence.start_position} + sequence.num_rows,
                             static_cast<int64_t>(sequence.pages.size()), {i, count});
      for (const int32_t page : sequence.pages) CheckAttentionPage(part, page);
    }
    RequireView(call.site, "scratch", call.scratch[static_cast<size_t>(i)], part.cache->device(), DType::kU8,
                {kAnySize});
  }
}

}  // namespace stoch
