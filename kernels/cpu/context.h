// SPDX-License-Identifier: Apache-2.0
// What every op of the CPU backend works with.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/rank_threads.h"
#include "kernels/cpu/sc_lookup.h"
#include "kernels/cpu/sc_operands.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/thread_pool.h"

namespace stoch::cpu {

// Remembers the first NaN or infinity that ops met, per device. Report may be called from any thread.
class FiniteReport {
 public:
  void Report(Device device, const OpSite& site, std::string_view what);
  // Errors: InvalidInput with what was reported for `device`, which is forgotten.
  void Check(Device device);

 private:
  std::mutex mutex_;
  std::map<int, std::string> first_;  // by device index
};

// Byte tables of operators, shared while a weight or cache uses them.
class ScLookups {
 public:
  ScLookupPtr Get(const ScOperatorPtr& op);
  // For an operator whose owner is the caller: a table that lives as long as the result.
  ScLookupPtr Get(const ScOperator& op);

 private:
  std::vector<std::weak_ptr<const ScLookup>> live_;
};

struct Context {
  Context(int threads, const Simd& variant) : pool(threads), simd(variant) {}

  ThreadPool pool;
  const Simd& simd;
  ScLookups lookups;
  FiniteReport finite;
  OpObserver* observer = nullptr;
  RankThreads ranks;  // started by the first ring
  RingProbe* ring_probe = nullptr;

  // Scratch of the op that runs, kept between ops so that a decode step allocates nothing large.
  std::vector<float> prologue;
  std::vector<float> raw_q;  // AttentionWork::raw_q
  ScRows rows;
};

}  // namespace stoch::cpu
