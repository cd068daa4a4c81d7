// SPDX-License-Identifier: Apache-2.0
#include "engine/kl_divergence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/json_text.h"
#include "loader/sha256.h"

namespace stoch {
namespace {

constexpr std::array<char, 8> kMagic = {'S', 'T', 'O', 'C', 'H', 'K', 'L', '2'};
constexpr std::array<char, 8> kMagicWithoutOrigin = {'S', 'T', 'O', 'C', 'H', 'K', 'L', '1'};
constexpr int64_t kMaxOriginBytes = int64_t{64} << 10;

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

void WriteHeader(std::ostream& file, int64_t vocab_size, int64_t rows, const std::string& origin) {
  Header header;
  header.vocab_size = vocab_size;
  header.rows = rows;
  Write(file, &header, 1);
  const auto bytes = static_cast<int64_t>(origin.size());
  Write(file, &bytes, 1);
  Write(file, origin.data(), origin.size());
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

}  // namespace

std::string IdsDigest(std::span<const int32_t> ids) {
  Sha256 sha;
  sha.Add(std::as_bytes(ids));
  return sha.Hex();
}

KlBaseWriter::KlBaseWriter(const std::filesystem::path& path, int64_t vocab_size, const KlBaseOrigin& origin)
    : path_(path), file_(path, std::ios::binary | std::ios::trunc), vocab_size_(vocab_size) {
  origin_ = JsonText(nlohmann::ordered_json{{"version", origin.version},
                                            {"model_sha256", origin.model_sha256},
                                            {"ids_sha256", origin.ids_sha256},
                                            {"config", origin.config},
                                            {"ctx", origin.ctx}});
  WriteHeader(file_, vocab_size, 0, origin_);
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

void KlBaseWriter::Add(Backend& backend, const TensorView& logits, std::span<const int32_t> targets) {
  copied_.resize(static_cast<size_t>(logits.numel()));
  backend.CopyToHost(copied_.data(), logits);
  Add(copied_, targets);
}

void KlBaseWriter::Close() {
  file_.seekp(0);
  WriteHeader(file_, vocab_size_, rows_, origin_);
  file_.close();
  Check();
}

KlBaseReader::KlBaseReader(const std::filesystem::path& path, int64_t vocab_size)
    : path_(path), file_(path, std::ios::binary), vocab_size_(vocab_size) {
  if (!file_) throw InvalidInput("cannot read " + path.string());
  Header header;
  ReadInto(file_, &header, 1);
  if (!file_ || (header.magic != kMagic && header.magic != kMagicWithoutOrigin)) {
    throw InvalidInput(path.string() + " is no file of base logits");
  }
  if (header.magic == kMagic) ReadOrigin();
  first_row_bytes_ = static_cast<int64_t>(file_.tellg());
  if (header.vocab_size != vocab_size) {
    throw InvalidInput(path.string() + " has logits of " + std::to_string(header.vocab_size) +
                       " tokens; expected the model's " + std::to_string(vocab_size));
  }
  const int64_t content = static_cast<int64_t>(std::filesystem::file_size(path)) - first_row_bytes_;
  if (header.rows <= 0 || header.rows > content || header.rows * RowBytes(vocab_size) != content) {
    throw InvalidInput(path.string() + " is incomplete: its header says " + std::to_string(header.rows) + " rows of " +
                       std::to_string(RowBytes(vocab_size)) + " bytes, it has " + std::to_string(content) + " bytes");
  }
  rows_ = header.rows;
}

void KlBaseReader::ReadOrigin() {
  int64_t bytes = 0;
  ReadInto(file_, &bytes, 1);
  std::string text(static_cast<size_t>(file_ ? std::clamp<int64_t>(bytes, 0, kMaxOriginBytes) : 0), '\0');
  ReadInto(file_, text.data(), text.size());
  const std::string where = path_.string() + ": what its base logits are of";
  if (!file_ || bytes != static_cast<int64_t>(text.size())) throw InvalidInput(where + ": is incomplete");
  const nlohmann::json json = ParseBoundedJson(text, where);
  try {
    origin_.version = json.at("version").get<std::string>();
    origin_.model_sha256 = json.at("model_sha256").get<std::string>();
    origin_.ids_sha256 = json.at("ids_sha256").get<std::string>();
    origin_.config = json.at("config").get<std::string>();
    origin_.ctx = json.at("ctx").get<int64_t>();
  } catch (const nlohmann::json::exception&) {
    throw InvalidInput(where + ": expected version, model_sha256, ids_sha256, config and ctx");
  }
}

void KlBaseReader::Seek(int64_t row) {
  STOCH_CHECK(row >= 0);
  next_ = row;  // Read refuses rows past the end
  if (row < rows_) file_.seekg(first_row_bytes_ + row * RowBytes(vocab_size_));
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

void KlStatistics::Add(std::span<const LogitComparison> rows) {
  for (const LogitComparison& row : rows) {
    if (row.top < 0 || row.base_top < 0) {
      throw InvalidInput("prediction " + std::to_string(rows_.size()) + ": its " + (row.top < 0 ? "" : "base ") +
                         "logits have NaN or infinity");
    }
    rows_.push_back(row);
  }
}

KlSummary KlStatistics::Summary() const {
  STOCH_CHECK(rows_.size() >= 2);
  const auto n = static_cast<double>(rows_.size());
  std::vector<double> kld, dp, nll, nll_base;
  int64_t same_top = 0;
  for (const LogitComparison& row : rows_) {
    kld.push_back(row.kld);
    nll.push_back(-row.logprob);
    nll_base.push_back(-row.base_logprob);
    dp.push_back(std::exp(row.logprob) - std::exp(row.base_logprob));
    if (row.top == row.base_top) ++same_top;
  }
  KlSummary summary;
  summary.rows = static_cast<int64_t>(rows_.size());
  summary.nll = Mean(nll);
  summary.nll_base = Mean(nll_base);
  const double variance = Covariance(nll, nll, summary.nll.mean, summary.nll.mean);
  const double base_variance = Covariance(nll_base, nll_base, summary.nll_base.mean, summary.nll_base.mean);
  const double covariance = Covariance(nll, nll_base, summary.nll.mean, summary.nll_base.mean);
  const double product = std::sqrt(variance * base_variance);
  summary.correlation = product > 0 ? covariance / product : 1;
  std::vector<double> differences, squares;
  for (size_t i = 0; i < nll.size(); ++i) {
    differences.push_back(nll[i] - nll_base[i]);
    squares.push_back(dp[i] * dp[i]);
  }
  summary.log_ppl_ratio = Mean(differences);
  summary.kld = Mean(kld);
  summary.kld_percentiles = Percentiles(kld);
  summary.dp = Mean(dp);
  summary.dp_percentiles = Percentiles(dp);
  const MeanError square = Mean(squares);
  summary.rms_dp.mean = std::sqrt(square.mean);
  summary.rms_dp.error = summary.rms_dp.mean > 0 ? 0.5 * square.error / summary.rms_dp.mean : 0;
  const double share = static_cast<double>(same_top) / n;
  summary.same_top = {share, std::sqrt(share * (1 - share) / (n - 1))};
  return summary;
}

// ------------------------------------------------------------------------------------------------- comparison ----

int64_t KlUploadRows(int64_t vocab_size) {
  // Enough rows of a large vocabulary to fill a GPU, and a copy that takes longer than it takes to begin.
  constexpr int64_t kBytes = int64_t{16} << 20;
  constexpr int64_t kMostRows = 1024;
  return std::clamp<int64_t>(kBytes / (vocab_size * 4), 1, kMostRows);
}

void KlComparison::Prepare(const TensorView& logits, std::span<const int32_t> targets, bool with_file) {
  STOCH_CHECK(logits.rank == 2 && logits.dim(0) == static_cast<int64_t>(targets.size()) &&
              logits.dim(1) == vocab_size_);
  for (const int32_t target : targets) {
    if (target >= 0 && target < vocab_size_) continue;
    throw InvalidInput("token id " + std::to_string(target) + ", expected below " + std::to_string(vocab_size_));
  }
  const Device device = logits.device;
  if (rows_ == 0) {
    rows_ = KlUploadRows(vocab_size_);
    for (Slot& slot : slots_) {
      slot.targets = backend_.AllocateShared(device, rows_ * int64_t{sizeof(int32_t)});
      slot.answers = backend_.AllocateShared(device, rows_ * int64_t{sizeof(LogitComparison)});
    }
  }
  STOCH_CHECK(slots_[0].answers.device() == device);
  if (!with_file || base_.data() != nullptr) return;
  const int64_t bytes = rows_ * vocab_size_ * int64_t{sizeof(float)};
  for (Slot& slot : slots_) slot.base = backend_.AllocateShared(device, bytes);
  base_ = backend_.Allocate(device, bytes);
}

void KlComparison::Begin(Slot& slot, const TensorView& base, const TensorView& logits,
                         std::span<const int32_t> targets) {
  const auto rows = static_cast<int64_t>(targets.size());
  std::copy(targets.begin(), targets.end(), static_cast<int32_t*>(slot.targets.data()));
  CompareLogitsCall call;
  call.site = {-1, "compare_logits"};
  call.logits = logits;
  call.base = base;
  call.targets = MakeView(slot.targets.data(), DType::kI32, logits.device, rows);
  call.out = MakeView(slot.answers.data(), DType::kU8, logits.device, rows, int64_t{sizeof(LogitComparison)});
  backend_.CompareLogits(call);
  begun_ = &slot;
  begun_rows_ = rows;
}

void KlComparison::Finish() {
  if (begun_ == nullptr) return;
  const Slot& slot = *std::exchange(begun_, nullptr);
  backend_.Synchronize(slot.answers.device());
  statistics_.Add({static_cast<const LogitComparison*>(slot.answers.data()), static_cast<size_t>(begun_rows_)});
}

void KlComparison::Add(const TensorView& base, const TensorView& logits, std::span<const int32_t> targets) {
  Prepare(logits, targets, false);
  for (size_t first = 0; first < targets.size(); first += static_cast<size_t>(rows_)) {
    const std::span<const int32_t> part =
        targets.subspan(first).first(std::min(targets.size() - first, static_cast<size_t>(rows_)));
    const auto begin = static_cast<int64_t>(first), rows = static_cast<int64_t>(part.size());
    Begin(slots_[0], Slice(base, 0, begin, rows), Slice(logits, 0, begin, rows), part);
    Finish();
  }
}

void KlComparison::Add(KlBaseReader& base, const TensorView& logits, std::span<const int32_t> targets) {
  Prepare(logits, targets, true);
  size_t turn = 0;
  for (size_t first = 0; first < targets.size(); first += static_cast<size_t>(rows_)) {
    const std::span<const int32_t> part =
        targets.subspan(first).first(std::min(targets.size() - first, static_cast<size_t>(rows_)));
    const auto begin = static_cast<int64_t>(first), rows = static_cast<int64_t>(part.size());
    Slot& slot = slots_[turn];
    turn ^= 1;
    try {
      base.Read(part, {static_cast<float*>(slot.base.data()), part.size() * static_cast<size_t>(vocab_size_)});
    } catch (...) {
      Finish();  // nothing works on memory that is about to go
      throw;
    }
    Finish();
    const TensorView uploaded = MakeView(base_.data(), DType::kF32, logits.device, rows, vocab_size_);
    backend_.Copy(uploaded, MakeView(slot.base.data(), DType::kF32, logits.device, rows, vocab_size_));
    Begin(slot, uploaded, Slice(logits, 0, begin, rows), part);
  }
  Finish();
}

}  // namespace stoch
