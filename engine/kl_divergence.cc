// SPDX-License-Identifier: Apache-2.0
#include "engine/kl_divergence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "engine/logprobs.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/usable_threads.h"

namespace stoch {
namespace {

constexpr std::array<char, 8> kMagic = {'S', 'T', 'O', 'C', 'H', 'K', 'L', '1'};

struct Header {
  std::array<char, 8> magic = kMagic;
  int64_t vocab_size = 0;
  int64_t rows = 0;
};

template <typename T>
void Write(std::ostream& file, const T* data, size_t count) {
  file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(count * sizeof(T)));
}
template <typename T>
void ReadInto(std::istream& file, T* data, size_t count) {
  file.read(reinterpret_cast<char*>(data), static_cast<std::streamsize>(count * sizeof(T)));
}

int64_t RowBytes(int64_t vocab_size) { return 4 + 4 * vocab_size; }

MeanError Mean(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  const double mean = sum / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / n / (n - 1))};
}

double Covariance(std::span<const double> a, std::span<const double> b, double mean_a, double mean_b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - mean_a) * (b[i] - mean_b);
  return sum / static_cast<double>(a.size());
}

// Linear interpolation between the two nearest ranks.
std::vector<double> Percentiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::vector<double> result;
  for (const double percent : kKlPercentiles) {
    const double rank = percent / 100 * static_cast<double>(values.size() - 1);
    const auto low = static_cast<size_t>(rank);
    const size_t high = std::min(low + 1, values.size() - 1);
    const double fraction = rank - static_cast<double>(low);
    result.push_back(values[low] + (values[high] - values[low]) * fraction);
  }
  return result;
}

// What one prediction adds to the statistics.
struct Row {
  double nll = 0;
  double nll_base = 0;
  double kld = 0;
  bool same_top = false;
};

Row Compare(std::span<const float> base, std::span<const float> ours, int32_t target) {
  const LogSum base_sum = ComputeLogSum(base);
  const LogSum our_sum = ComputeLogSum(ours);
  Row row;
  for (size_t j = 0; j < base.size(); ++j) {
    const double base_logprob = base_sum.LogProb(base[j]);
    row.kld += std::exp(base_logprob) * (base_logprob - our_sum.LogProb(ours[j]));
  }
  row.nll = -our_sum.LogProb(ours[static_cast<size_t>(target)]);
  row.nll_base = -base_sum.LogProb(base[static_cast<size_t>(target)]);
  row.same_top = HostArgmax(base) == HostArgmax(ours);
  return row;
}

}  // namespace

KlBaseWriter::KlBaseWriter(const std::filesystem::path& path, int64_t vocab_size)
    : path_(path), file_(path, std::ios::binary | std::ios::trunc), vocab_size_(vocab_size) {
  Header header;
  header.vocab_size = vocab_size;
  Write(file_, &header, 1);
  Check();
}

void KlBaseWriter::Check() {
  if (!file_) throw InvalidInput("cannot write " + path_.string() + " (is the folder there, the disk full?)");
}

void KlBaseWriter::Add(std::span<const float> logits, std::span<const int32_t> targets) {
  const auto vocab = static_cast<size_t>(vocab_size_);
  STOCH_CHECK(logits.size() == targets.size() * vocab);
  for (size_t i = 0; i < targets.size(); ++i) {
    Write(file_, &targets[i], 1);
    Write(file_, &logits[i * vocab], vocab);
  }
  Check();
  rows_ += static_cast<int64_t>(targets.size());
}

void KlBaseWriter::Close() {
  Header header;
  header.vocab_size = vocab_size_;
  header.rows = rows_;
  file_.seekp(0);
  Write(file_, &header, 1);
  file_.close();
  Check();
}

KlBaseReader::KlBaseReader(const std::filesystem::path& path, int64_t vocab_size)
    : path_(path), file_(path, std::ios::binary), vocab_size_(vocab_size) {
  if (!file_) throw InvalidInput("cannot read " + path.string());
  Header header;
  ReadInto(file_, &header, 1);
  if (!file_ || header.magic != kMagic) throw InvalidInput(path.string() + " is no file of base logits");
  if (header.vocab_size != vocab_size) {
    throw InvalidInput(path.string() + " has logits of " + std::to_string(header.vocab_size) +
                       " tokens; expected the model's " + std::to_string(vocab_size));
  }
  const auto content = static_cast<int64_t>(std::filesystem::file_size(path)) - static_cast<int64_t>(sizeof(Header));
  if (header.rows <= 0 || header.rows > content || header.rows * RowBytes(vocab_size) != content) {
    throw InvalidInput(path.string() + " is incomplete: its header says " + std::to_string(header.rows) + " rows of " +
                       std::to_string(RowBytes(vocab_size)) + " bytes, it has " + std::to_string(content) + " bytes");
  }
  rows_ = header.rows;
}

void KlBaseReader::Read(std::span<const int32_t> targets, std::span<float> logits) {
  const auto vocab = static_cast<size_t>(vocab_size_);
  STOCH_CHECK(logits.size() == targets.size() * vocab);
  if (next_ + static_cast<int64_t>(targets.size()) > rows_) {
    throw InvalidInput(path_.string() + " has only " + std::to_string(rows_) + " rows; the text needs more");
  }
  for (size_t i = 0; i < targets.size(); ++i, ++next_) {
    int32_t target = 0;
    ReadInto(file_, &target, 1);
    ReadInto(file_, &logits[i * vocab], vocab);
    if (!file_) throw InvalidInput("cannot read " + path_.string());
    if (target != targets[i]) {
      throw InvalidInput(path_.string() + " predicts id " + std::to_string(target) + " in row " +
                         std::to_string(next_) + "; the text has " + std::to_string(targets[i]) +
                         " (another text, tokenizer or --ctx?)");
    }
  }
}

void KlStatistics::Add(std::span<const float> base_logits, std::span<const float> logits,
                       std::span<const int32_t> targets) {
  STOCH_CHECK(!targets.empty() && base_logits.size() == logits.size() && logits.size() % targets.size() == 0);
  const size_t vocab = logits.size() / targets.size();
  std::vector<Row> rows(targets.size());
  // A row of 128256 tokens takes milliseconds.
  ParallelFor(static_cast<int64_t>(rows.size()), UsableThreads(), [&](int64_t row) {
    const auto i = static_cast<size_t>(row);
    rows[i] = Compare(base_logits.subspan(i * vocab, vocab), logits.subspan(i * vocab, vocab), targets[i]);
  });
  for (const Row& row : rows) {
    nll_.push_back(row.nll);
    nll_base_.push_back(row.nll_base);
    kld_.push_back(row.kld);
    dp_.push_back(std::exp(-row.nll) - std::exp(-row.nll_base));
    if (row.same_top) ++same_top_;
  }
}

KlSummary KlStatistics::Summary() const {
  STOCH_CHECK(kld_.size() >= 2);
  const auto n = static_cast<double>(kld_.size());
  KlSummary summary;
  summary.rows = static_cast<int64_t>(kld_.size());
  summary.nll = Mean(nll_);
  summary.nll_base = Mean(nll_base_);
  const double variance = Covariance(nll_, nll_, summary.nll.mean, summary.nll.mean);
  const double base_variance = Covariance(nll_base_, nll_base_, summary.nll_base.mean, summary.nll_base.mean);
  const double covariance = Covariance(nll_, nll_base_, summary.nll.mean, summary.nll_base.mean);
  const double product = std::sqrt(variance * base_variance);
  summary.correlation = product > 0 ? covariance / product : 1;
  std::vector<double> differences, squares;
  for (size_t i = 0; i < nll_.size(); ++i) {
    differences.push_back(nll_[i] - nll_base_[i]);
    squares.push_back(dp_[i] * dp_[i]);
  }
  summary.log_ppl_ratio = Mean(differences);
  summary.kld = Mean(kld_);
  summary.kld_percentiles = Percentiles(kld_);
  summary.dp = Mean(dp_);
  summary.dp_percentiles = Percentiles(dp_);
  const MeanError square = Mean(squares);
  summary.rms_dp.mean = std::sqrt(square.mean);
  summary.rms_dp.error = summary.rms_dp.mean > 0 ? 0.5 * square.error / summary.rms_dp.mean : 0;
  const double share = static_cast<double>(same_top_) / n;
  summary.same_top = {share, std::sqrt(share * (1 - share) / (n - 1))};
  return summary;
}

}  // namespace stoch
