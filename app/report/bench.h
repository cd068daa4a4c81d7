// SPDX-License-Identifier: Apache-2.0
// The results of `stoch bench`, in four forms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stoch::cli {

// One test: a prompt of `prompt` tokens in one go, or (prompt = 0) decode steps of `batch` sequences after `depth`
// tokens, at a temperature. With log-probabilities of all prompt tokens, or of the picked ones, and of so many
// alternatives (-1: none).
struct BenchCase {
  int64_t prompt = 0;
  int64_t depth = 0;
  int64_t batch = 1;
  double temperature = 0;
  int logprobs = -1;
};

struct BenchResult {
  BenchCase test;
  std::string precision;
  std::string sc;
  std::vector<double> samples_ms;        // per repetition: of the whole prompt, or the mean of its decode steps
  int64_t tokens = 0;                    // of one sample
  double floor_ms = 0;                   // what memory (decode) or binary tensor cores (prompt) would need; 0 = unknown
  double fill_ms = 0;                    // until the first sequence had its depth, cold or warm; 0 = of a prompt
  std::optional<double> baseline_ratio;  // median time over that of the last precision of the list

  double median_ms() const;
  double spread() const;  // (max - min) / median
};

struct BenchDevice {
  std::string name;
  int64_t used_bytes = 0;  // when all was measured, less what was used before; a GPU's kernels and context included
};

// What one precision took.
struct BenchLoad {
  std::string precision;
  double load_ms = 0;
  int64_t decoder_bytes = 0;  // of the decoder linears, scales and padding included
  double bytes_per_parameter = 0;
  int64_t kv_bytes = 0;
  int64_t workspace_bytes = 0;
  std::vector<BenchDevice> devices;  // GPUs
};

struct BenchEnvironment {
  std::string model;
  std::string device;         // or several: "cuda:0,cuda:1"
  std::string split;          // "layer" or "row" of several, else ""
  std::string device_name;    // of the first
  std::string device_detail;  // driver and compute capability, or the CPU variant
  std::string commit;
  double read_bytes_per_s = 0;
  std::string baseline;  // precision the ratios are to, "" if there is one precision
  std::vector<BenchLoad> loads;
};

// "prompt 512 logprobs 5", "decode @4096 x8 T 1".
std::string CaseName(const BenchCase& test);

// format: "md", "csv", "json", "jsonl"; the JSON forms hold every repetition.
std::string FormatBench(const BenchEnvironment& environment, const std::vector<BenchResult>& results,
                        const std::string& format);

}  // namespace stoch::cli
