// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/research/sweep_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/error.h"
#include "tools/stoch/research/sweep_log.h"
#include "tools/stoch/research/sweep_parts.h"

namespace stoch::cli {
namespace {

std::vector<SweepLine> WholeLines(const std::string& text, const std::string& name) {
  size_t whole = 0;
  std::vector<SweepLine> lines = ParseSweepLines(text, name, &whole);
  if (whole != text.size()) throw InvalidInput(name + ": ends in a torn line: resume that shard first");
  return lines;
}

std::map<std::string, size_t> RunsByKey(const SweepPlan& plan) {
  std::map<std::string, size_t> runs;
  for (size_t i = 0; i < plan.runs.size(); ++i) runs[plan.runs[i].key] = i;
  return runs;
}

template <typename Wanted>
bool AnyRow(const std::string& text, const Wanted& wanted) {
  size_t whole = 0;
  const std::vector<SweepLine> lines = ParseSweepLines(text, "merged rows", &whole);
  return std::any_of(lines.begin(), lines.end(),
                     [&](const SweepLine& line) { return wanted(nlohmann::json::parse(line.text)); });
}

// Whether file i has no rows but those of shard i of so many.
bool AreShardsInOrder(const SweepPlan& plan, const std::vector<std::string>& names,
                      const std::vector<std::string>& texts) {
  const std::map<std::string, size_t> runs = RunsByKey(plan);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (const SweepLine& line : WholeLines(texts[i], names[i])) {
      if (runs.at(line.key) % texts.size() != i) return false;
    }
  }
  return true;
}

}  // namespace

std::string MergeShards(const std::vector<std::string>& names, const std::vector<std::string>& texts) {
  std::vector<std::vector<SweepLine>> shards;
  size_t total = 0;
  std::set<std::string> keys;
  for (size_t i = 0; i < texts.size(); ++i) {
    shards.push_back(WholeLines(texts[i], names[i]));
    for (const SweepLine& line : shards.back()) {
      if (!keys.insert(line.key).second) {
        throw InvalidInput(names[i] + ": key " + ShortKey(line.key) + " is in two shards");
      }
    }
    total += shards.back().size();
  }
  std::string merged;
  for (size_t row = 0; row < total; ++row) {
    const size_t shard = row % shards.size();
    if (row / shards.size() >= shards[shard].size()) {
      throw InvalidInput(names[shard] + ": has " + std::to_string(shards[shard].size()) + " rows of " +
                         std::to_string(total) + ": allowed are complete shards in the order 0/n, 1/n, ...");
    }
    merged += shards[shard][row / shards.size()].text + '\n';
  }
  return merged;
}

MergedSweep MergeWithPlan(const SweepPlan& plan, const std::vector<std::string>& names,
                          const std::vector<std::string>& texts) {
  const std::map<std::string, size_t> runs = RunsByKey(plan);
  std::map<size_t, SweepLine> rows;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (SweepLine& line : WholeLines(texts[i], names[i])) {
      const auto run = runs.find(line.key);
      if (run == runs.end()) {
        throw InvalidInput(names[i] + ": key " + ShortKey(line.key) + " is of another plan or version");
      }
      if (!rows.emplace(run->second, std::move(line)).second) {
        throw InvalidInput(fmt::format("{}: run {} of the plan is there twice", names[i], run->second));
      }
    }
  }
  MergedSweep merged;
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    const auto row = rows.find(i);
    if (row == rows.end()) {
      merged.missing_runs.push_back(i);
      continue;
    }
    if (row->second.failed) merged.failed_runs.push_back(i);
    merged.rows.push_back(row->second.text);
  }
  return merged;
}

std::string CommandOfRun(const SweepPlan& plan, const std::string& plan_name, size_t run,
                         const std::vector<std::string>& names, const std::vector<std::string>& texts) {
  if (AreShardsInOrder(plan, names, texts)) {
    const size_t shard = run % names.size();
    return fmt::format("stoch sweep {} --shard {}/{} --resume -o {}", plan_name, shard, names.size(), names[shard]);
  }
  return fmt::format("stoch sweep {} --shard {}/{} -o run-{}.jsonl", plan_name, run, plan.runs.size(), run);
}

bool HasSeeds(const std::string& text) {
  return AnyRow(text, [](const nlohmann::json& row) { return row.contains("seed"); });
}

bool HasParts(const std::string& text) {
  return AnyRow(text, [](const nlohmann::json& row) { return row.value("schema", "") == kSweepPartSchema; });
}

size_t CountFailed(const std::string& text) {
  size_t whole = 0;
  const std::vector<SweepLine> lines = ParseSweepLines(text, "merged rows", &whole);
  return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), [](const auto& line) { return line.failed; }));
}

}  // namespace stoch::cli
