// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/attention_scenario.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/parallel_for.h"
#include "kernels/base/usable_threads.h"
#include "kernels/context_bucket.h"
#include "kernels/math/elementary.h"
#include "kernels/math/number_formats.h"
#include "kernels/math/random.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/reference_cache.h"

namespace stoch::test {
namespace {

// Near normal, with an outlier in every few dozen numbers and some heads of tiny values.
float Input(int tensor, int sequence, int position, int64_t column) {
  const uint64_t stream = static_cast<uint64_t>(tensor) * 1000 + static_cast<uint64_t>(sequence);
  const auto at = static_cast<uint64_t>(position) * 65536 + static_cast<uint64_t>(column);
  const float x = RandomWeight(7, stream, at, 1.0f);
  const uint64_t pick = RandomBits(8, stream, at) % 97;
  return pick == 0 ? x * 8.0f : (pick == 1 ? 0.0f : x);
}

std::vector<float> RopeTable(int64_t positions, int head_dim) {
  std::vector<float> table(static_cast<size_t>(positions * head_dim));
  for (int64_t p = 0; p < positions; ++p) {
    for (int i = 0; i < head_dim / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * i / head_dim);
      table[static_cast<size_t>(p * head_dim + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(p * head_dim + head_dim / 2 + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

ScOperatorPtr Operator(ScConfig config, AttentionMode mode) {
  config.granularity = mode == AttentionMode::kPerHead ? ScGranularity::kPerHead : ScGranularity::kPerRow;
  return MakeScOperator(config);
}

// All that rows without extras depend on.
std::string DescriptionOf(const AttentionShape& shape, const Passes& passes) {
  std::string text = Describe(shape.qk) + "; " + Describe(shape.av);
  for (const int64_t number :
       {static_cast<int64_t>(shape.mode), static_cast<int64_t>(shape.precision), int64_t{shape.num_heads},
        int64_t{shape.num_kv_heads}, int64_t{shape.head_dim}, int64_t{shape.page_tokens}, shape.max_context,
        int64_t{shape.window}, int64_t{std::bit_cast<int32_t>(shape.qk_gain)}, int64_t{shape.period},
        int64_t{std::bit_cast<int32_t>(shape.v_drift)}, int64_t{std::bit_cast<int32_t>(shape.v_spike)},
        int64_t{shape.first_head}, int64_t{shape.smooths_qk ? 1 : 0},
        int64_t{std::bit_cast<int32_t>(shape.score_cap)}}) {
    text += ' ' + std::to_string(number);
  }
  for (const auto& pass : passes) {
    text += " |";
    for (const Share& share : pass) text += ' ' + std::to_string(share.sequence) + 'x' + std::to_string(share.rows);
  }
  return text;
}

AttentionRows RunPasses(Backend& backend, const AttentionShape& shape, const Passes& passes,
                        const std::string& graph_key) {
  const Device device = backend.devices()[0];
  int num_sequences = 0;
  int64_t max_rows = 0;
  for (const auto& pass : passes) {
    int64_t rows = 0;
    for (const Share& share : pass) {
      num_sequences = std::max(num_sequences, share.sequence + 1);
      rows += share.rows;
    }
    max_rows = std::max(max_rows, rows);
  }
  const int64_t pages_each = (shape.max_context + shape.page_tokens - 1) / shape.page_tokens;

  KvCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = shape.num_kv_heads;
  spec.head_dim = shape.head_dim;
  spec.page_tokens = shape.page_tokens;
  spec.num_pages = pages_each * num_sequences;
  spec.mode = shape.mode;
  spec.precision = shape.precision;
  spec.smooths_qk = shape.smooths_qk || shape.exp_table != nullptr || shape.score_cap > 0;
  if (shape.mode != AttentionMode::kExact) {
    spec.qk = Operator(shape.qk, shape.mode);
    spec.av = Operator(shape.av, shape.mode);
    if (shape.qk.arith == ScArith::kMxInt8) spec.key_scales = (shape.head_dim + kMxBlock - 1) / kMxBlock;
    if (shape.qk_extras != nullptr || shape.av_extras != nullptr) {
      spec.layers.assign(2, {spec.qk, spec.av, shape.qk_extras, shape.av_extras});
    }
  }
  const auto cache = backend.MakeKvCache(device, spec);
  const auto pass_handle = backend.MakePass(device, {max_rows, num_sequences, pages_each});
  std::vector<float> factors;
  for (int i = 0; i < shape.num_kv_heads * shape.head_dim; ++i)
    factors.push_back(0.5f + 0.1f * static_cast<float>(i % 16));
  const DeviceTensor smooth(backend, {shape.num_kv_heads, shape.head_dim}, factors);
  const DeviceTensor rope(backend, {shape.max_context, shape.head_dim}, RopeTable(shape.max_context, shape.head_dim));

  std::vector<std::vector<int32_t>> pages(static_cast<size_t>(num_sequences));
  auto next_page = static_cast<int32_t>(spec.num_pages);
  for (int64_t p = 0; p < pages_each; ++p) {
    for (auto& list : pages) list.push_back(--next_page);
  }

  const int q_cols = shape.num_heads * shape.head_dim;
  const int kv_cols = shape.num_kv_heads * shape.head_dim;
  const int row_floats = q_cols + 2 * kv_cols;
  // One buffer for q | k | v, as the model has it: rows are strided views. Fixed, as recorded graphs want it.
  const DeviceTensor qkv(backend, {max_rows, row_floats},
                         std::vector<float>(static_cast<size_t>(max_rows * row_floats)));
  const DeviceTensor out(backend, {max_rows, q_cols}, std::vector<float>(static_cast<size_t>(max_rows * q_cols)));

  AttentionRows result;
  std::vector<int> lengths(static_cast<size_t>(num_sequences), 0);
  for (const auto& pass : passes) {
    PassLayout layout;
    std::vector<std::pair<int, int>> names;
    int longest = 0;
    for (const Share& share : pass) {
      int& length = lengths[static_cast<size_t>(share.sequence)];
      layout.sequences.push_back({static_cast<int32_t>(layout.ids.size()), share.rows, length,
                                  std::span<const int32_t>(pages[static_cast<size_t>(share.sequence)]),
                                  static_cast<uint32_t>(7 + share.sequence)});
      longest = std::max(longest, length + share.rows);
      for (int r = 0; r < share.rows; ++r, ++length) {
        layout.ids.push_back(0);
        names.emplace_back(share.sequence, length);
      }
    }
    layout.output_rows = {0};
    const auto rows = static_cast<int64_t>(names.size());
    std::vector<float> values(static_cast<size_t>(rows * row_floats));
    ParallelFor(rows, UsableThreads(), [&](int64_t r) {
      const auto [sequence, position] = names[static_cast<size_t>(r)];
      const int at = shape.period > 0 ? position % shape.period : position;
      float* to = values.data() + r * row_floats;
      for (int c = 0; c < q_cols; ++c) *to++ = shape.qk_gain * Input(0, sequence, at, c);
      for (int c = 0; c < kv_cols; ++c) *to++ = shape.qk_gain * Input(1, sequence, at, c);
      const float spike = position % 701 == 700 ? shape.v_spike : 1.0f;
      const float drift = (1.0f + static_cast<float>(position % 5) * shape.v_drift) * spike;
      for (int c = 0; c < kv_cols; ++c) *to++ = drift * Input(2, sequence, at, c);
    });
    const TensorView x = Slice(qkv.view(), 0, 0, rows);
    backend.CopyFromHost(x, values.data());
    backend.UploadPass(*pass_handle, layout);
    const std::vector<float> poison(static_cast<size_t>(rows * q_cols), NAN);
    const TensorView y = Slice(out.view(), 0, 0, rows);
    backend.CopyFromHost(y, poison.data());

    AttentionCall call;
    call.site = {3, "attention"};
    call.q = Slice(x, 1, 0, q_cols);
    call.k = Slice(x, 1, q_cols, kv_cols);
    call.v = Slice(x, 1, q_cols + kv_cols, kv_cols);
    call.rope = rope.view();
    call.cache = cache.get();
    call.cache_layer = 1;
    call.pass = pass_handle.get();
    call.num_heads = shape.num_heads;
    call.window = shape.window;
    call.first_head = shape.first_head;
    if (shape.smooths_qk) call.qk_smooth = smooth.view();
    call.exp_table = shape.exp_table;
    call.score_cap = shape.score_cap;
    call.out = y;
    const std::string bucket = std::to_string(ContextBucket(longest));
    const std::string key = graph_key.empty() ? "" : graph_key + std::to_string(rows) + " context " + bucket;
    backend.RunGraph(device, key, [&] { backend.Attention(call); });
    std::vector<float> read(poison.size());
    backend.CopyToHost(read.data(), y);
    for (int64_t r = 0; r < rows; ++r) {
      const auto begin = read.begin() + r * q_cols;
      result[names[static_cast<size_t>(r)]] = std::vector<float>(begin, begin + q_cols);
    }
  }
  backend.CheckFinite(device);
  return result;
}

}  // namespace

AttentionRows RunAttention(Backend& backend, const AttentionShape& shape, const Passes& passes,
                           const std::string& graph_key) {
  const auto run = [&] { return RunPasses(backend, shape, passes, graph_key); };
  const bool is_reference =
      backend.name() == "cpu" && shape.qk_extras == nullptr && shape.av_extras == nullptr && shape.exp_table == nullptr;
  return is_reference ? Reference(DescriptionOf(shape, passes), run) : run();
}

std::string Differences(const AttentionRows& a, const AttentionRows& b) {
  if (a.size() != b.size()) return "other rows";
  int64_t count = 0;
  std::string first;
  for (const auto& [name, row] : a) {
    const auto other = b.find(name);
    if (other == b.end()) return "other rows";
    if (row.size() == other->second.size() &&
        std::memcmp(row.data(), other->second.data(), row.size() * sizeof(float)) == 0) {
      continue;
    }
    if (count++ > 0) continue;
    size_t i = 0;
    while (FloatToBits(row[i]) == FloatToBits(other->second[i])) ++i;
    first = "sequence " + std::to_string(name.first) + " position " + std::to_string(name.second) + " column " +
            std::to_string(i) + ": " + std::to_string(row[i]) + " and " + std::to_string(other->second[i]);
  }
  return count == 0 ? "" : std::to_string(count) + " of " + std::to_string(a.size()) + " rows differ; " + first;
}

}  // namespace stoch::test
