// SPDX-License-Identifier: Apache-2.0
// How far a run's next-token distributions are from those of a base run: the statistics of llama.cpp's
// llama-perplexity --kl-divergence, from logits kept in a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

namespace stoch {

// File of base logits, little-endian: the 8 bytes "STOCHKL1", int64 vocab_size, int64 rows, then per row int32 target
// id and vocab_size float32 logits.

// Writes a base file. Errors: InvalidInput naming the file where it cannot be created or written (disk full).
class KlBaseWriter {
 public:
  KlBaseWriter(const std::filesystem::path& path, int64_t vocab_size);
  // Shapes: logits [targets.size(), vocab_size].
  void Add(std::span<const float> logits, std::span<const int32_t> targets);
  void Close();  // writes the row count; a file without it is not accepted by the reader

 private:
  void Check();

  std::filesystem::path path_;
  std::ofstream file_;
  int64_t vocab_size_;
  int64_t rows_ = 0;
};

// Reads one in order. Errors: InvalidInput for a file that is not one, is truncated, or has another vocabulary.
class KlBaseReader {
 public:
  KlBaseReader(const std::filesystem::path& path, int64_t vocab_size);
  int64_t rows() const { return rows_; }
  // The next targets.size() rows. Errors: InvalidInput past the end, or if the file's targets differ.
  void Read(std::span<const int32_t> targets, std::span<float> logits);

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  int64_t vocab_size_;
  int64_t rows_ = 0;
  int64_t next_ = 0;
};

// Mean and standard error of the mean.
struct MeanError {
  double mean = 0;
  double error = 0;
};

struct KlSummary {
  int64_t rows = 0;
  MeanError nll, nll_base;  // of the targets; perplexity = exp(mean)
  double correlation = 0;   // of the two nll, in [-1, 1]
  MeanError log_ppl_ratio;  // ln(ppl / ppl_base)
  MeanError kld;            // sum p_base * ln(p_base / p)
  // Percentiles of kld and of delta p (p - p_base of the target): minimum, 1, 5, 10, 50, 90, 95, 99, 99.9, maximum.
  std::vector<double> kld_percentiles, dp_percentiles;
  MeanError dp;
  MeanError rms_dp;
  MeanError same_top;  // share of rows with the same most likely token
};
inline constexpr double kKlPercentiles[] = {0, 1, 5, 10, 50, 90, 95, 99, 99.9, 100};

// Collects rows of both runs.
class KlStatistics {
 public:
  // Rows [targets.size(), vocab_size] of both. Rows are divided over the threads that can run; every sum is one thread's.
  void Add(std::span<const float> base_logits, std::span<const float> logits, std::span<const int32_t> targets);
  // Requires: at least two rows added.
  KlSummary Summary() const;

 private:
  std::vector<double> kld_, dp_, nll_, nll_base_;
  int64_t same_top_ = 0;
};

}  // namespace stoch
