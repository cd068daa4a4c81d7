// SPDX-License-Identifier: Apache-2.0
// Where in a model a product is: the keys that its faults are drawn by (docs/research.md).
#pragma once

#include <cstdint>

#include "kernels/math/random.h"

namespace stoch {

// Kinds of draws, one key each.
enum class FaultKind : uint8_t { kProduct = 16, kAcc = 17, kWeight = 18, kActivation = 19 };

// Indices are those of the whole model, never of a shard, a tile, a slot of a batch or a pass.
struct ScSite {
  int64_t layer = 0;         // the number of layers for the LM head
  int op = 0;                // q, k, v, o, gate, up, down_proj 0..6, lm_head 7, qk 8, av 9
  int64_t unit = 0;          // expert, query head, or KV head of the weights of qk and av
  int64_t first_output = 0;  // output feature of the first row, in a part of a matrix
  uint64_t first_row = 0;    // number of the first row, in a product outside a model

  uint64_t number() const {
    return (static_cast<uint64_t>(layer) * 16 + static_cast<uint64_t>(op)) * 65536 + static_cast<uint64_t>(unit);
  }
};

// Operators that read one buffer of activations share its faults: those of q_proj, and of gate_proj.
inline ScSite SiteOfActivations(const ScSite& site) {
  constexpr int kQProj = 0, kVProj = 2, kGateProj = 4, kUpProj = 5;
  ScSite shared = site;
  if (site.op <= kVProj) shared.op = kQProj;
  if (site.op == kUpProj) shared.op = kGateProj;
  if (site.op <= kVProj || site.op == kGateProj || site.op == kUpProj) shared.unit = 0;
  return shared;
}

// Numbers of sequences are 0..this.
inline constexpr int64_t kMaxSequenceNumber = INT32_MAX;

// A token: the number of its sequence (of a window) and its absolute position.
STOCH_HD constexpr uint64_t FaultRow(uint32_t sequence, int64_t position) {
  return (uint64_t{sequence} << 32) + static_cast<uint64_t>(position);
}

// The number of a site as a key, of which that of a row is draw 0.
STOCH_HD uint64_t SiteKey(uint64_t seed, FaultKind kind, uint64_t site) {
  return RandomBits(seed, static_cast<uint64_t>(kind), site);
}
// key(row); draw `stream` of a column is RandomBits(key, stream, column).
inline uint64_t FaultKey(uint64_t seed, FaultKind kind, const ScSite& site, uint64_t row) {
  return RandomBits(SiteKey(seed, kind, site.number()), 0, row);
}

}  // namespace stoch
