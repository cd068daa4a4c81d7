// SPDX-License-Identifier: Apache-2.0
// Attention of sequences whose positions are dealt over several devices (stripes.h): one op of all of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/device_fault.h"
#include "kernels/calls.h"
#include "kernels/stripes.h"

namespace stoch {

// How keys and queries meet: the backend's choice, or what a check asks for.
// kRing:  the keys and values of one KV head at a time travel from each device to the next, in as many hops as there
//         are other devices; each then has all of them for its own rows.
// kQuery: queries go to every device, which works on its own positions: whole lanes. What comes back of each row and
//         head are two maxima, sums of lanes, and int32 sums of p v (exact attention: lanes of p v).
enum class RingRoute : uint8_t { kAuto, kRing, kQuery };
// Queries of up to so many rows of a sequence, and their results, take less to send than its keys and values.
inline constexpr int32_t kQueryRows = 8;

// parts[i] is AttentionCall on the device of stripe i of parts.size(), with these differences.
// Shapes:   parts[i].pass holds the whole pass, the same on every device: absolute positions, and pages of the cache's
//           page_tokens positions each. q, k, v and out have the rows of it that the device owns (DealPass), which may be
//           none. rope has a row for each position that the device owns. scratch[i] U8 [Backend::RingScratchBytes], dense.
// Requires: IsStripeCount(parts.size()), distinct devices; caches whose spec has as many stripes, and is otherwise the
//           same; one layer, window, pairs and number of heads; attention kExact or kPerToken, dilated or not.
// Bits:     those of Attention over an undivided cache. Lanes, masks and windows go by absolute position.
// Errors:   LostHop where a hop does not arrive in time; nothing waits for it any more then, and the op may be repeated.
// Async:    an op of every device, in order with the ops issued before and after on each.
struct RingAttentionCall {
  OpSite site;
  RingRoute route = RingRoute::kAuto;
  std::vector<AttentionCall> parts;
  std::vector<TensorView> scratch;
};

// One hop of the ring: what was stripe `origin`'s goes from one device to the next.
struct RingHop {
  OpSite site;
  int64_t sequence = 0;  // index in the pass
  int64_t kv_head = 0;
  int origin = 0;
  int hop = 0;  // 1 .. hops
  int hops = 0;
  Device from, to;
};

// A hop that did not arrive in time. The device goes on.
class LostHop : public DeviceRefusal {
 public:
  LostHop(const std::string& message, const RingHop& hop) : DeviceRefusal(message), hop_(hop) {}
  const RingHop& hop() const { return hop_; }

 private:
  RingHop hop_;
};

// Sees the hops of rings, for checks and tests. Where queries travel between GPUs, OnSend sees what each device has for
// each other one as hop 1, 2, ... of a sequence and KV head 0, whatever the pass; nothing else of them is shown.
// Called from the threads that move the data, several at a time.
class RingProbe {
 public:
  virtual ~RingProbe() = default;
  // Before a hop is sent; may take its time. False: the hop is lost.
  virtual bool OnSend(const RingHop& /*hop*/) { return true; }
  // The window that arrived, in a form of the backend's own: the same bytes at every hop from one origin.
  virtual void OnArrive(const RingHop& /*hop*/, std::span<const uint8_t> /*bytes*/) {}
  // How long a device waits for a hop.
  virtual int64_t limit_ms() const { return kRingLimitMs; }

  static constexpr int64_t kRingLimitMs = 5000;
};

// Checks of a call that every backend makes before any device does anything. `pass`: the content of the passes.
// Errors: InvalidInput naming the site and the operand.
void CheckRingAttention(const RingAttentionCall& call, const PassLayout& pass);
// The passes and caches are there. Before anything is read of them.
void CheckRingHandles(const RingAttentionCall& call);

}  // namespace stoch
