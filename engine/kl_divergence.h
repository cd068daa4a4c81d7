// SPDX-License-Identifier: Apache-2.0
// How far a run's next-token distributions are from those of a base run: the statistics of llama.cpp's
// llama-perplexity --kl-divergence. Rows are compared where the logits are; those of the base may come from a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/logit_comparison.h"

namespace stoch {

// File of base logits, little-endian: the 8 bytes "STOCHKL2", int64 vocab_size, int64 rows, int64 bytes of the origin,
// the origin as a JSON object, then per row int32 target id and vocab_size float32 logits. "STOCHKL1" has no origin and no
// number of its bytes.

// The run that made the logits of a base. Empty and 0: not said.
struct KlBaseOrigin {
  std::string version;       // of the program
  std::string model_sha256;  // DigestWeights
  std::string ids_sha256;    // IdsDigest of the whole text
  std::string config;        // fp32, fp16, or what Describe says
  int64_t ctx = 0;           // of the windows, which are the first of the text
};
// sha256 over the ids as int32, little-endian.
std::string IdsDigest(std::span<const int32_t> ids);

// Writes a base file. Errors: InvalidInput naming the file where it cannot be created or written (disk full).
class KlBaseWriter {
 public:
  KlBaseWriter(const std::filesystem::path& path, int64_t vocab_size, const KlBaseOrigin& origin = {});
  // Shapes: logits [targets.size(), vocab_size].
  void Add(std::span<const float> logits, std::span<const int32_t> targets);
  void Add(Backend& backend, const TensorView& logits, std::span<const int32_t> targets);  // copied to the host
  void Close();  // writes the row count; a file without it is not accepted by the reader

 private:
  void Check();

  std::filesystem::path path_;
  std::string origin_;  // as JSON
  std::ofstream file_;
  int64_t vocab_size_;
  int64_t rows_ = 0;
  std::vector<float> copied_;
};

// Reads one in order. Errors: InvalidInput for a file that is not one, is truncated, or has another vocabulary.
class KlBaseReader {
 public:
  KlBaseReader(const std::filesystem::path& path, int64_t vocab_size);
  int64_t rows() const { return rows_; }
  const KlBaseOrigin& origin() const { return origin_; }
  // The next row to read is this one. Requires: 0 <= row.
  void Seek(int64_t row);
  // The next targets.size() rows. Errors: InvalidInput past the end, or if the file's targets differ.
  void Read(std::span<const int32_t> targets, std::span<float> logits);

 private:
  void ReadOrigin();

  std::filesystem::path path_;
  KlBaseOrigin origin_;
  std::ifstream file_;
  int64_t first_row_bytes_ = 0;  // where it is in the file
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

// Collects what comparisons of rows gave (Backend::CompareLogits).
class KlStatistics {
 public:
  // Errors: InvalidInput naming a prediction, from 0 in order, whose logits or base logits have NaN or infinity.
  void Add(std::span<const LogitComparison> rows);
  // Requires: at least two rows added.
  KlSummary Summary() const;
  // All rows that were added, in order.
  std::span<const LogitComparison> rows() const { return rows_; }

 private:
  std::vector<LogitComparison> rows_;
};

// Rows of base logits that a KlComparison with a file keeps on the device: what EngineOptions::base_rows is then.
int64_t KlUploadRows(int64_t vocab_size);

// Compares rows of logits with base rows on the device that has them; the host reads one LogitComparison a row.
// Bits: independent of the device, of threads, and of how rows come in calls.
class KlComparison {
 public:
  // `backend` outlives it. Memory is taken at the first call: answers in memory of the host, and with a file
  // KlUploadRows(vocab_size) base rows on the device and twice as many in pinned memory.
  KlComparison(Backend& backend, int64_t vocab_size) : backend_(backend), vocab_size_(vocab_size) {}

  // Shapes: base, logits F32 [targets.size(), vocab_size] on one device of the backend, dense rows.
  // Errors: InvalidInput as KlStatistics, and for targets outside of the vocabulary; DeviceError.
  void Add(const TensorView& base, const TensorView& logits, std::span<const int32_t> targets);
  // The same with the next rows of a file, which are read while the device compares those before them. Errors: as Read.
  void Add(KlBaseReader& base, const TensorView& logits, std::span<const int32_t> targets);

  // Requires: at least two rows added.
  KlSummary Summary() const { return statistics_.Summary(); }
  std::span<const LogitComparison> rows() const { return statistics_.rows(); }

 private:
  // Memory that host and device share, of one call of the op.
  struct Slot {
    Buffer base;     // F32 [rows_, vocab_size]
    Buffer targets;  // I32 [rows_]
    Buffer answers;  // LogitComparison [rows_]
  };
  void Prepare(const TensorView& logits, std::span<const int32_t> targets, bool with_file);
  void Begin(Slot& slot, const TensorView& base, const TensorView& logits, std::span<const int32_t> targets);
  void Finish();  // what began, if anything did

  Backend& backend_;
  int64_t vocab_size_;
  int64_t rows_ = 0;  // of a call of the op
  Slot slots_[2];     // in turns
  Buffer base_;       // on the device, F32 [rows_, vocab_size]
  const Slot* begun_ = nullptr;
  int64_t begun_rows_ = 0;
  KlStatistics statistics_;
};

}  // namespace stoch
