// SPDX-License-Identifier: Apache-2.0
#include "research/sc_files.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "kernels/base/error.h"
#include "loader/file.h"
#include "loader/quote.h"
#include "loader/research/count_file.h"
#include "loader/research/mask_file.h"
#include "loader/research/mp_file.h"
#include "loader/research/multiplier_file.h"
#include "loader/research/nonlinear_file.h"
#include "loader/research/smooth_file.h"
#include "loader/research/smooth_json.h"
#include "loader/sha256.h"
#include "models/sc_settings.h"
#include "research/products/gate_notices.h"

namespace stoch {
namespace {

constexpr int64_t kMaxJsonBytes = int64_t{64} << 20;
constexpr size_t kShaDigits = 16;

std::string ShortSha(std::string_view bytes) { return Sha256Hex(bytes).substr(0, kShaDigits); }

void AddUnknown(const std::string& name, const std::vector<std::string>& keys, std::vector<std::string>* notices) {
  if (keys.empty()) return;
  std::string joined;
  for (const std::string& key : keys) joined += (joined.empty() ? "" : ", ") + key;
  notices->push_back(name + ": keys that are not known and have no effect: " + joined);
}

// Entries of a table that no operator and layer bucket reads.
std::vector<std::string> WithoutEffect(const MpFile& mp) {
  std::set<std::string> operators, buckets, chunk_buckets, layer_ops;
  for (const ScOperatorEntry& entry : ScOperators()) {
    const std::string op(entry.name);
    if (op == "lm_head") continue;
    const bool linear = op != "qk" && op != "av";
    operators.insert(op);
    for (int64_t j = 0; j < std::max<int64_t>(1, mp.layer_buckets); ++j) {
      buckets.insert(op + ":t0:l" + std::to_string(j));
    }
    for (int64_t j = 0; linear && j < std::max<int64_t>(1, mp.chunk_layer_buckets); ++j) {
      chunk_buckets.insert(op + ":t0:l" + std::to_string(j));
    }
    if (linear) layer_ops.insert(op);
  }
  std::vector<std::string> keys;
  constexpr size_t kMost = 16;
  const auto add = [&](const std::string& section, const auto& entries, const auto& known) {
    for (const auto& [key, value] : entries) {
      if (!known(key) && keys.size() < kMost) keys.push_back(section + "." + Quoted(key));
    }
  };
  const auto in = [](const std::set<std::string>& names) {
    return [&names](const std::string& key) { return names.contains(key); };
  };
  // Buckets of later timesteps are read by nobody, as published.
  const auto of_bucket = [](const std::set<std::string>& names) {
    return [&names](const std::string& key) {
      const size_t step = key.find(":t");
      const size_t layer = key.find(":l");
      const bool later = step != std::string::npos && layer != std::string::npos && step + 2 < layer &&
                         key.substr(step + 2, layer - step - 2) != "0";
      return later || names.contains(key);
    };
  };
  const auto is_number = [](const std::string& text) {
    return text == "0" ||
           (!text.empty() && text[0] != '0' && text.find_first_not_of("0123456789") == std::string::npos);
  };
  // "op:bN".
  const auto of_layer = [&](const std::string& key) {
    const size_t colon = key.find(":b");
    return colon != std::string::npos && layer_ops.contains(key.substr(0, colon)) && is_number(key.substr(colon + 2));
  };
  // Or "op:bN:uK".
  const auto of_unit = [&](const std::string& key) {
    const size_t unit = key.find(":u");
    return of_layer(key.substr(0, unit)) && (unit == std::string::npos || is_number(key.substr(unit + 2)));
  };
  add("operator_defaults", mp.operator_defaults, in(operators));
  add("dispatch_metrics", mp.dispatch, in(operators));
  add("buckets", mp.buckets, of_bucket(buckets));
  add("per_row_chunk", mp.chunk_buckets, of_bucket(chunk_buckets));
  add("k_bands.ladders", mp.ladders, of_bucket(buckets));
  add("k_bands.chunk_bands", mp.chunk_bands, of_layer);
  add("protected_channels", mp.protected_channels, of_unit);
  return keys;
}

// The cost identity of bands: at level k the chunks of an operator take stoc_len_levels[k] cycles on average. Ladders
// are whole numbers, so that half a cycle may be missing. Returns the first that differs, or "".
std::string BandCosts(const MpFile& mp) {
  constexpr double kSlack = 0.5;
  for (const auto& [layer_op, bands] : mp.chunk_bands) {
    const std::string op = layer_op.substr(0, layer_op.find(":b"));
    const auto chunks = static_cast<int64_t>(bands.size());
    const auto given = mp.residual_width.find(op);
    const int64_t width = given == mp.residual_width.end() ? chunks * mp.band_chunk_d : given->second;
    if (chunks == 0 || (width + mp.band_chunk_d - 1) / mp.band_chunk_d != chunks) continue;
    for (const auto& [bucket, ladders] : mp.ladders) {
      if (bucket.substr(0, bucket.find(":t")) != op) continue;
      for (size_t level = 0; level < mp.levels.size(); ++level) {
        double sum = 0;
        for (int64_t c = 0; c < chunks; ++c) {
          const auto band = static_cast<size_t>(bands[static_cast<size_t>(c)]);
          const int64_t own = std::min(mp.band_chunk_d, width - c * mp.band_chunk_d);
          sum += static_cast<double>(own) * ladders[band][level];
        }
        const double average = sum / static_cast<double>(width);
        if (std::abs(average - mp.levels[level]) <= kSlack) continue;
        return "the ladders of " + Quoted(bucket) + " take " + std::to_string(average) + " cycles on average in " +
               Quoted(layer_op) + " at level " + std::to_string(level) + ", stoc_len_levels has " +
               std::to_string(mp.levels[level]);
      }
    }
  }
  return "";
}

void ApplyMask(const MaskFile& mask, ScModelConfig* config) {
  std::vector<std::string> settings;
  if (!mask.default_arith.empty()) {
    for (const ScOperatorEntry& op : ScOperators()) {
      if (op.name != "lm_head") settings.push_back(std::string(op.name) + ".arith=" + mask.default_arith);
    }
  }
  for (const auto& [op, entries] : mask.schedule) {
    for (size_t layer = 0; layer < entries.size(); ++layer) {
      settings.push_back(std::to_string(layer) + '.' + op + ".arith=" + entries[layer]);
    }
  }
  try {
    *config = ParseScModelConfig(settings, *config);
  } catch (const InvalidInput& error) {
    throw InvalidInput(mask.name + ": " + error.what());
  }
  const auto set_chunk = [&](ScOperatorConfigs& operators) {
    for (size_t i = 0; i < operators.size(); ++i) {
      const auto id = static_cast<ScOperatorId>(i);
      const bool linear = id != ScOperatorId::kQk && id != ScOperatorId::kAv;
      if (linear && (IntBits(operators[i].arith) > 0 || operators[i].arith == ScArith::kFp8E4m3))
        operators[i].chunk_d = mask.chunk_size;
    }
  };
  set_chunk(config->operators);
  for (auto& [layer, operators] : config->layers) set_chunk(operators);
  config->files.mask_layers.clear();
  for (const auto& [op, entries] : mask.schedule) config->files.mask_layers[op] = static_cast<int64_t>(entries.size());
  config->files.mask_name = mask.name;
}

SmoothFile ReadFactors(const std::string& path, std::string* sha, std::vector<std::string>* notices) {
  if (path.ends_with(".json")) {
    const std::string text = ReadSmallFile(path, kMaxJsonBytes);
    std::vector<std::string> unknown;
    SmoothFile file = ParseSmoothJson(text, path, &unknown);
    AddUnknown(path, unknown, notices);
    *sha = ShortSha(text);
    return file;
  }
  SmoothFile factors = ReadSmoothFile(path);
  const MappedFile file(path);
  *sha = ShortSha({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
  return factors;
}

// One file, or the names of both.
void ReadSmoothing(const ScFileOptions& options, ScModelConfig* config, std::vector<std::string>* notices) {
  if (options.smooth.empty()) return;
  SmoothFile factors = ReadFactors(options.smooth, &config->files.smooth_sha, notices);
  if (!options.more_smooth.empty()) {
    std::string sha;
    SmoothFile more = ReadFactors(options.more_smooth, &sha, notices);
    for (auto& [name, values] : more.scales) {
      if (factors.scales.contains(name)) {
        throw InvalidInput(options.more_smooth + ": layers." + name + " is in " + options.smooth + " too");
      }
      factors.scales[name] = std::move(values);
    }
    config->files.smooth_sha += '+' + sha;
  }
  const bool has_qk = std::any_of(factors.scales.begin(), factors.scales.end(),
                                  [](const auto& entry) { return entry.first.ends_with(".qk"); });
  if (has_qk && config->attention == AttentionMode::kExact) {
    notices->push_back(options.smooth +
                       ": attention = exact multiplies q and k as they are, factors of qk have no effect");
  }
  config->files.smooth = std::make_shared<const SmoothFile>(std::move(factors));
}

void ReadTables(ScModelConfig* config) {
  for (const TableEntry& entry : TableFunctions()) {
    ScTable& table = config->tables.*entry.table;
    if (table.name.empty() || table.table != nullptr) continue;
    const MappedFile file(table.name);
    const std::string sha = ShortSha({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
    table.table = std::make_shared<const NonlinearTable>(ReadNonlinearFile(table.name, entry.function));
    table.name = sha;
  }
}

// Tables by file and reading, each read once.
class Tables {
 public:
  void Read(ScConfig* op) {
    ReadCounts(op);
    if (op->gate != ScGate::kTable || op->table.empty() || op->multiplier.get() != nullptr) return;
    const std::string key = op->table + '\n' + std::to_string(static_cast<int>(op->table_code)) +
                            std::to_string(static_cast<int>(op->table_order));
    std::shared_ptr<MultiplierTable>& table = tables_[key];
    if (table == nullptr) table = ReadMultiplierTable(op->table, op->table_code, op->table_order);
    op->multiplier = MultiplierTablePtr(table);
    op->table = table->sha256.substr(0, kShaDigits);
    op->table_order = ScTableOrder::kFile;
  }

 private:
  void ReadCounts(ScConfig* op) {
    if (op->gate != ScGate::kCounts || op->counts.empty() || op->count_table.get() != nullptr) return;
    std::shared_ptr<CountTable>& table = counts_[op->counts];
    if (table == nullptr) table = ReadCountTable(op->counts);
    CheckCountTable(*table, op->sc_prec, op->mode == ScMode::kUnipolar, op->counts);
    op->count_table = CountTablePtr(table);
    op->counts = table->sha256.substr(0, kShaDigits);
  }

  std::map<std::string, std::shared_ptr<CountTable>> counts_;
  std::map<std::string, std::shared_ptr<MultiplierTable>> tables_;
};

}  // namespace

std::shared_ptr<MultiplierTable> ReadMultiplierTable(const std::string& path, ScTableCode code, ScTableOrder order) {
  constexpr int64_t kMaxBytes = int64_t{16} << 20;
  auto table =
      std::make_shared<MultiplierTable>(ParseMultiplierFile(ReadSmallFile(path, kMaxBytes), path, code, order));
  Sha256 sha;
  sha.Add(std::as_bytes(std::span(table->entries)));
  table->sha256 = sha.Hex();
  return table;
}

std::shared_ptr<CountTable> ReadCountTable(const std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{80} << 20;  // 256 masks of 256 x 256 int32
  auto table = std::make_shared<CountTable>(ParseCountFile(ReadSmallFile(path, kMaxBytes), path));
  Sha256 sha;
  sha.Add(std::as_bytes(std::span(table->entries)));
  table->sha256 = sha.Hex();
  return table;
}

std::vector<std::string> ReadScFiles(const ScFileOptions& options, ScModelConfig* config) {
  std::vector<std::string> notices;
  if (options.mp_normalise != "fixed" && options.mp_normalise != "call") {
    throw InvalidInput("--mp-normalise " + options.mp_normalise + ": allowed is fixed, call");
  }
  if (options.mask_bits != 0 && (options.mask_bits < 2 || options.mask_bits > 8)) {
    throw InvalidInput("--mask-bits " + std::to_string(options.mask_bits) + ": allowed is 2..8");
  }
  if (!options.mask.empty()) {
    const std::string text = ReadSmallFile(options.mask, kMaxJsonBytes);
    const MaskFile mask = ParseMaskFile(text, options.mask, options.mask_bits);
    AddUnknown(mask.name, mask.unknown_keys, &notices);
    ApplyMask(mask, config);
    config->files.mask_sha = ShortSha(text);
  } else if (options.mask_bits != 0) {
    throw InvalidInput("--mask-bits: has no meaning without --mask");
  }
  if (!options.mp.empty()) {
    std::string contents;
    MpFile mp = ParseMpFile(ReadSmallFile(options.mp, kMaxJsonBytes), options.mp,
                            std::filesystem::path(options.mp).parent_path(), &contents);
    std::vector<std::string> unknown = mp.unknown_keys;
    const std::vector<std::string> unused = WithoutEffect(mp);
    unknown.insert(unknown.end(), unused.begin(), unused.end());
    AddUnknown(mp.name, unknown, &notices);
    if (const std::string costs = BandCosts(mp); !costs.empty()) notices.push_back(mp.name + ": k_bands: " + costs);
    config->files.mp_sha = ShortSha(contents);
    config->files.mp = std::make_shared<const MpFile>(std::move(mp));
    config->files.normalise = options.mp_normalise == "call" ? ScNormalise::kCall : ScNormalise::kFixed;
  } else if (options.mp_normalise != "fixed") {
    throw InvalidInput("--mp-normalise: has no meaning without --mp");
  }
  ReadSmoothing(options, config, &notices);
  ReadTables(config);
  Tables tables;
  for (ScConfig& op : config->operators) tables.Read(&op);
  for (auto& [layer, operators] : config->layers) {
    for (ScConfig& op : operators) tables.Read(&op);
  }
  Validate(*config);
  for (std::string& notice : GateNotices(*config)) notices.push_back(std::move(notice));
  return notices;
}

}  // namespace stoch
