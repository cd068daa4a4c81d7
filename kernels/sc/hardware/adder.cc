// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/hardware/adder.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>

#include "kernels/base/check.h"
#include "kernels/math/random.h"
#include "kernels/sc/number_source.h"

namespace stoch {
namespace {

constexpr uint64_t kMuxStream = 5;  // stream of source_seed that the mux draws from

// The lowest bits of `from` in the places of the ones of `mask`, in order; *from loses those that were taken.
uint64_t Deposit(uint64_t mask, uint64_t* from) {
  uint64_t result = 0;
  for (; mask != 0; mask &= mask - 1) {
    if ((*from & 1) != 0) result |= mask & -mask;
    *from >>= 1;
  }
  return result;
}

}  // namespace

std::vector<int> MuxInputs(const ScConfig& config) {
  std::vector<int> inputs;
  for (int t = 0; t < config.stoc_len; ++t) {
    const uint64_t draw = RandomBits(config.source_seed, kMuxStream, static_cast<uint64_t>(t));
    const auto group = static_cast<unsigned>(config.adder_group);
    inputs.push_back(static_cast<int>((static_cast<unsigned __int128>(draw) * group) >> 64));
  }
  return inputs;
}

ScAdderStreams::ScAdderStreams(const ScOperator& op)
    : adder_(op.config.adder),
      gate_(op.config.gate),
      code_(op.code),
      q_max_(op.q_max),
      levels_(op.levels),
      masks_(op.masks),
      words_((op.config.stoc_len + 63) / 64),
      stoc_len_(op.config.stoc_len),
      group_(op.config.adder_group) {
  STOCH_CHECK(adder_ != ScAdder::kCounter && HasSource(gate_) && words_ <= kMostWords);
  const std::vector<int> boundaries =
      LevelBoundaries(levels_, code_ == ScCode::kOffset ? 2 * q_max_ : q_max_, op.config.rng_levels);
  const auto fill = [&](ScSide side, std::vector<Word>* words) {
    words->assign(static_cast<size_t>(masks_) * static_cast<size_t>(levels_), Word{});
    for (int mask = 0; mask < masks_; ++mask) {
      const std::vector<int> values = ComparatorValues(op.config, side, mask);
      for (int level = 0; level < levels_; ++level) {
        Word& word = (*words)[Index(mask, level)];
        for (size_t t = 0; t < values.size(); ++t) {
          if (values[t] < boundaries[static_cast<size_t>(level)]) word.bits[t / 64] |= uint64_t{1} << (t % 64);
        }
      }
    }
  };
  fill(ScSide::kA, &a_);
  fill(ScSide::kB, &b_);
  for (int t = 0; t < stoc_len_; ++t) all_.bits[t / 64] |= uint64_t{1} << (t % 64);
  if (adder_ != ScAdder::kMux) return;
  selected_.resize(static_cast<size_t>(group_));
  const std::vector<int> inputs = MuxInputs(op.config);
  for (int t = 0; t < stoc_len_; ++t) {
    const auto input = static_cast<size_t>(inputs[static_cast<size_t>(t)]);
    selected_[input].bits[t / 64] |= uint64_t{1} << (t % 64);
  }
}

int64_t ScAdderStreams::bytes() const {
  return static_cast<int64_t>((a_.size() + b_.size() + selected_.size()) * sizeof(Word));
}

ScAdderStreams::Word ScAdderStreams::Product(int64_t mask, int a, int b) const {
  const Word& left = a_[Index(mask, a)];
  Word right = b_[Index(mask, b)];
  Word result = {};
  if (gate_ == ScGate::kEnabled) {
    // Side b advances by one in each cycle that a is on.
    int taken = 0;
    for (int w = 0; w < words_; ++w) {
      const int ones = std::popcount(left.bits[w]);
      uint64_t next = right.bits[taken / 64] >> (taken % 64);
      if (taken % 64 != 0 && taken / 64 + 1 < words_) next |= right.bits[taken / 64 + 1] << (64 - taken % 64);
      result.bits[w] = Deposit(left.bits[w], &next);
      taken += ones;
    }
    return result;
  }
  for (int w = 0; w < words_; ++w) {
    result.bits[w] =
        gate_ == ScGate::kXnor ? ~(left.bits[w] ^ right.bits[w]) & all_.bits[w] : left.bits[w] & right.bits[w];
  }
  return result;
}

void ScAdderStreams::AddOr(const Word* words, const bool* negative, int64_t count, int64_t* acc) const {
  for (int w = 0; w < words_; ++w) {
    uint64_t either[2] = {0, 0};
    for (int64_t i = 0; i < count; ++i) either[negative[i] ? 1 : 0] |= words[i].bits[w];
    *acc += std::popcount(either[0]) - std::popcount(either[1]);
  }
}

void ScAdderStreams::AddMux(const Word* words, const bool* negative, int64_t count, int64_t* acc) const {
  for (int64_t i = 0; i < count; ++i) {
    const Word& selected = selected_[static_cast<size_t>(i)];
    for (int w = 0; w < words_; ++w) {
      const int ones = std::popcount(words[i].bits[w] & selected.bits[w]);
      if (gate_ == ScGate::kXnor) {
        *acc += 2 * ones - std::popcount(selected.bits[w]);
      } else {
        *acc += negative[i] ? -ones : ones;
      }
    }
  }
}

void ScAdderStreams::AddApc(const Word* words, const bool* negative, int64_t count, int64_t* acc) const {
  for (int w = 0; w < words_; ++w) {
    for (int64_t i = 0; i < count; i += 2) {
      const uint64_t x[2] = {words[i].bits[w], i + 1 < count ? words[i + 1].bits[w] : 0};
      const bool minus[2] = {negative[i], i + 1 < count && negative[i + 1]};
      for (const bool side : {false, true}) {
        const uint64_t first = minus[0] == side ? x[0] : 0;
        const uint64_t second = minus[1] == side ? x[1] : 0;
        const int ones = 2 * std::popcount(i / 2 % 2 == 0 ? first & second : first | second);
        *acc += side ? -ones : ones;
      }
    }
  }
}

int64_t ScAdderStreams::Sum(const int* a, const int* b, int64_t step, int64_t first, int64_t dims) const {
  const bool bipolar = code_ == ScCode::kSignMagnitude;
  const int offset = code_ == ScCode::kOffset ? q_max_ : 0;
  int64_t acc = 0;
  std::vector<Word> words(static_cast<size_t>(group_));
  const auto negative = std::make_unique<bool[]>(static_cast<size_t>(group_));
  for (int64_t begin = 0; begin < dims; begin += group_) {
    const int64_t count = std::min<int64_t>(group_, dims - begin);
    for (int64_t i = 0; i < count; ++i) {
      const int left = a[begin + i];
      const int right = b[(begin + i) * step];
      const int64_t mask = (first + begin + i) % masks_;
      words[static_cast<size_t>(i)] =
          bipolar ? Product(mask, std::abs(left), std::abs(right)) : Product(mask, left + offset, right + offset);
      negative[static_cast<size_t>(i)] = bipolar && (left < 0) != (right < 0);
    }
    switch (adder_) {
      case ScAdder::kCounter: break;
      case ScAdder::kOr: AddOr(words.data(), negative.get(), count, &acc); break;
      case ScAdder::kMux: AddMux(words.data(), negative.get(), count, &acc); break;
      case ScAdder::kApc: {
        int64_t sum = 0;
        AddApc(words.data(), negative.get(), count, &sum);
        acc += gate_ == ScGate::kXnor ? 2 * sum - count * stoc_len_ : sum;
        break;
      }
    }
  }
  return acc;
}

}  // namespace stoch
