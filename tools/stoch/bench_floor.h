// SPDX-License-Identifier: Apache-2.0
// What memory or tensor cores would need for the work of a test of stoch bench.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "app/report/bench.h"
#include "engine/engine.h"
#include "engine/ranks/job.h"

namespace stoch::cli {

// ms of a decode step: bytes that it must read over the read bandwidth, the weights once, every sequence's keys and
// values. 0: unknown. `ranks`: RankJob::reports, whose layers are read one rank after the other, at the bandwidth of this one.
double DecodeFloor(const Engine& engine, const BenchCase& test, int64_t steps, double read_bytes_per_s,
                   std::span<const RankReport> ranks);
// ms of a prompt's decoder linears on binary (SC) or fp16 tensor cores. 0: unknown.
double PromptFloor(const Engine& engine, const BenchCase& test, const std::string& device_name);

}  // namespace stoch::cli
