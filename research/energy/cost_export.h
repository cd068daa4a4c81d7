// SPDX-License-Identifier: Apache-2.0
// Costs for other tools: action counts for Accelergy, layers for uSystolic-Sim.
#pragma once

#include <span>
#include <string>

#include "research/cost.h"
#include "research/trace.h"

namespace stoch {

// action_counts.yaml of Accelergy 0.3: what each component of an accelerator did. Components: sc_mac_array, sng, sram,
// dram, int_mac_array, fp8_mac_array, mxint8_mac_array, fp_mac_array, table_mac_array.
std::string AccelergyActionCounts(const ScCost& cost);
// The component that an action of the schema is counted for; "" for an action that is not known.
std::string AccelergyComponent(const std::string& action);

// network.csv of uSystolic-Sim: one GEMM of rows x d_in by d_in x d_out for each group, its length as MAC cycles. A group
// whose rows see less than its shape (causal attention) is two, of the average row rounded down and up: the sum of
// rows * d_in * d_out is the group's macs in any case.
// Source: github.com/diwu1990/uSystolic-Sim, config/example_run/network.csv (the header).
std::string UsystolicNetwork(std::span<const TraceGroup> groups);

}  // namespace stoch
