// SPDX-License-Identifier: Apache-2.0
// A Stripe (kernels/stripes.h: the positions that one of several devices owns) as kernels take it, by value.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/math/host_device.h"
#include "kernels/stripes.h"

namespace stoch::cuda {

struct StripeView {
  static constexpr int32_t kWholeShift = std::countr_zero(static_cast<uint32_t>(kStripePeriod));

  int32_t width_shift = kWholeShift;  // the stripe owns 1 << width_shift positions of every period of kStripePeriod
  int32_t begin = 0;                  // offset of the first owned position within a period
  int32_t count_shift = 0;            // the sequence is dealt to 1 << count_shift devices

  StripeView() = default;
  explicit StripeView(const Stripe& stripe)
      : width_shift(std::countr_zero(static_cast<uint32_t>(stripe.width()))),
        begin(static_cast<int32_t>(stripe.index * stripe.width())),
        count_shift(kWholeShift - width_shift) {}

  STOCH_HD int32_t width() const { return 1 << width_shift; }
  // Number of owned positions below `position`; for an owned position, this is its local position.
  STOCH_HD int32_t Below(int32_t position) const {
    const int32_t whole = position >> kWholeShift << width_shift;
    const int32_t rest = (position & ((1 << kWholeShift) - 1)) - begin;
    return whole + (rest < 0 ? 0 : rest > width() ? width() : rest);
  }
  // The position in the sequence of the owned position number `local`.
  STOCH_HD int32_t Absolute(int32_t local) const {
    return (local >> width_shift << kWholeShift) + begin + (local & (width() - 1));
  }
  // Index of the stripe that owns a position.
  STOCH_HD int32_t OwnerOf(int32_t position) const { return (position & ((1 << kWholeShift) - 1)) >> width_shift; }
};

}  // namespace stoch::cuda
