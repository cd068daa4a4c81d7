// SPDX-License-Identifier: Apache-2.0
// sc_cost: what the SC products of a run would cost hardware (docs/research.md#cost).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "research/trace.h"

namespace stoch {

// What is counted besides macs and lengths.
struct CostOptions {
  std::vector<int64_t> tile_rows = {1, 8, 16, 32, 64};  // rows that run at their longest length
  std::optional<ArrayShape> array = {};                 // whose cycles and traffic are counted
};

// Multiplications by what does them. Units: macs, all exact.
struct MacCounts {
  Int128 sc = 0;                   // streams, pruned ones included
  Int128 table = 0;                // gate=table
  std::map<int, Int128> integers;  // arith=intN, by N
  Int128 fp8 = 0;                  // arith=fp8_e4m3
  Int128 mxint8 = 0;
  Int128 fp = 0;           // arith=fp, attention=exact and an exact LM head
  Int128 integer() const;  // of any N
  Int128 all() const { return sc + table + integer() + fp8 + mxint8 + fp; }
  MacCounts& operator+=(const MacCounts& other);
};
// A number, or decimal text beyond 64 bits.
nlohmann::ordered_json IntegerJson(Int128 value);

// One operator of one layer.
struct OperatorCost {
  int layer = -1;  // -1: the LM head
  std::string op;  // "q_proj", ..., "qk", "av", "lm_head"
  MacCounts macs;
  bool lengths_known = true;          // false: rows had lengths of their own that nobody saw, so what follows is 0
  Int128 mac_cycles = 0;              // sum of macs * length
  std::map<int, Int128> macs_by_len;  // of streams; 0 = pruned
  Trace::ArrayCounts array;           // dram_read_bytes without an array too
};

// A plain value. Averages are one division of exact integers in double; absent where there are no macs, or lengths that
// are not known.
struct ScCost {
  int64_t calls = 0;                                      // windows, prompts and generated tokens
  std::vector<OperatorCost> operators;                    // by layer, in the order of a layer, the LM head last
  std::vector<std::pair<int64_t, double>> tile_averages;  // rows of a tile, average with the longest length of tiles
  std::vector<Int128> tile_cycles;                        // macs times these lengths, where they were counted
  std::optional<ArrayShape> array_shape;

  bool lengths_known() const;
  MacCounts macs() const;
  std::optional<double> mac_average() const;  // mac_avg_stoc_len
  std::optional<double> linears_average() const;
  std::optional<double> attention_average() const;
  std::map<std::string, std::optional<double>> by_op() const;
  Trace::ArrayCounts array() const;
  Int128 mac_cycles() const;
  // The calls of both, exactly as one run of all of them counts. Requires: counted, of one model and one configuration,
  // with equal CostOptions.
  ScCost& operator+=(const ScCost& other);

  // {mac_avg_stoc_len, mac_avg_stoc_len_linears, mac_avg_stoc_len_attention, mac_avg_stoc_len_by_op{op},
  // mac_share{sc, table, int, fp}, with fp8_e4m3 and mxint8 where there are such macs, macs, calls, mac_cycles, tile_avg_stoc_len{"8"}, dram_read_bytes, array{R, C, K,
  // FILL, cycles, sng_bits, sram_read_bytes}}; with `layers` also `operators`, every one of every layer. Null: an
  // average that is absent.
  nlohmann::ordered_json ToJson(bool layers = false) const;
};

// How an operator of a layer is described in traces.
struct TracedOperator {
  ScConfig config;  // resolved
  bool smoothed = false;
};

// Receives the SC products of calls as they end, operator by operator, in the order of ScCost::operators: all products
// of one operator together.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void OnOperator(const TracedOperator& traced, std::span<const TraceCall> products) = 0;
};

// Counts the steps of an engine. A call is what was appended to a sequence at once and is computed, in any number of
// passes: a prompt, a window, a generated token. Uniform operators cost nothing while the engine runs: they follow
// from geometry. Mixed lengths are seen by observing the backend.
// Bits: results depend on no cut, batch or placement.
class ScCostCollector {
 public:
  // Observes until it dies. Requires: `engine` outlives it, is in SC, and has no other step observer; where lengths are
  // mixed its backend has no other observer (another one hands its OnLengths to lengths()).
  // Errors: InvalidInput where the options ask for what cannot be known: an array with experts, or where rows have
  //         lengths of their own that the backend does not show.
  ScCostCollector(Engine& engine, CostOptions options, CallSink* sink = nullptr);
  ~ScCostCollector();
  ScCostCollector(const ScCostCollector&) = delete;
  ScCostCollector& operator=(const ScCostCollector&) = delete;

  // Of the calls that are complete.
  ScCost Cost() const;
  // The groups of published traces, of the calls that are complete.
  std::vector<TraceGroup> Groups() const;
  // Requires: an operator in streams that the model has.
  TracedOperator Traced(int layer, const std::string& op) const;
  // For who observes the backend instead: give it what OnLengths gets.
  OpObserver& lengths();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stoch
