// SPDX-License-Identifier: Apache-2.0
// Sequences over several devices whose next rows RingAttention runs, for the tests of its bits and of its hops.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/math/nonlinear_table.h"
#include "kernels/math/random.h"
#include "models/decoder/memory_plan.h"
#include "models/sc_model_config.h"
#include "tests/support/ring_gpus.h"

namespace stoch::test {

// Windows of GPUs have all KV heads of short sequences, and one at a time of long ones.
inline const int kFewPositions = setenv("STOCH_TEST_RING_POSITIONS", "2600", 1);

struct RingShape {
  int heads = 4, kv_heads = 2, head_dim = 24;
  int64_t positions = 192;  // of a sequence
  int sequences = 1;
  std::vector<DilatedPair> pairs = {};
  int64_t first_head = 0;
  std::function<void(KvCacheSpec*)> edit = {};  // before caches are made
  bool smooths = false;                         // factors of q and k
  const NonlinearTable* exp_table = nullptr;
  float score_cap = 0;
};

// Sequences over some devices of a backend, with a call that runs their next rows.
struct Ring {
  Ring(std::shared_ptr<Backend> devices, Precision precision, int count, const std::string& settings = "preset=halved",
       const RingShape& its_shape = {})
      : stripes(count), shape(its_shape), backend(std::move(devices)) {
    DecoderConfig config;
    config.num_attention_heads = shape.heads;
    config.num_key_value_heads = shape.kv_heads;
    config.head_dim = shape.head_dim;
    const int64_t sequence_pages = (shape.positions + kKvPageTokens - 1) / kKvPageTokens;
    const auto num_pages = static_cast<int32_t>(sequence_pages * shape.sequences);
    spec = MakeKvCacheSpec(config, precision, ParseScModelConfig(std::vector<std::string>{settings}), 1, num_pages);
    spec.stripes = count;
    spec.dilated = spec.mode == AttentionMode::kPerToken;
    spec.smooths_qk = shape.smooths || shape.exp_table != nullptr || shape.score_cap > 0;
    if (shape.edit) shape.edit(&spec);
    pages.resize(static_cast<size_t>(shape.sequences));
    done.resize(pages.size());
    for (int32_t page = 0; page < num_pages; ++page) {
      pages[static_cast<size_t>(page % shape.sequences)].push_back((page + 2) % num_pages);
    }
    const PassLimits limits{shape.positions * shape.sequences, shape.sequences + 1, sequence_pages};
    for (int i = 0; i < count; ++i) {
      const Device device = backend->devices()[static_cast<size_t>(i)];
      caches.push_back(backend->MakeKvCache(device, spec));
      passes.push_back(backend->MakePass(device, limits));
      call.parts.emplace_back();
      const int64_t bytes = backend->RingScratchBytes(spec, shape.heads, limits);
      memory.push_back(backend->Allocate(device, bytes));
      call.scratch.push_back(MakeView(memory.back().data(), DType::kU8, device, bytes));
      // NaN where a hop brought nothing.
      const std::vector<uint8_t> nothing(static_cast<size_t>(bytes), 0xff);
      backend->CopyFromHost(call.scratch.back(), nothing.data());
    }
    call.site = {0, "attention"};
  }
  explicit Ring(Precision precision, int count, const std::string& settings = "preset=halved")
      : Ring(OpenBackend("cpu:8", {.threads = 1, .cpu_variant = ""}, nullptr), precision, count, settings) {}

  // Numbers that depend on a row's sequence and position. rows: by sequence of the pass.
  TensorView Random(Device device, uint64_t stream, const std::vector<DealtRows>& dealt, const Stripe& stripe,
                    int64_t cols) {
    std::vector<float> values;
    for (size_t s = 0; s < dealt.size(); ++s) {
      for (int32_t row = 0; row < dealt[s].num_rows; ++row) {
        const int64_t at = running[s] * shape.positions + stripe.Absolute(dealt[s].first_local + row);
        for (int64_t i = 0; i < cols; ++i) {
          values.push_back(RandomWeight(3, stream, static_cast<uint64_t>(at * cols + i), 1.0F));
        }
      }
    }
    const auto rows = static_cast<int64_t>(values.size()) / cols;
    memory.push_back(backend->Allocate(device, std::max<int64_t>(1, rows * cols) * 4));
    const TensorView view = MakeView(memory.back().data(), DType::kF32, device, rows, cols);
    if (!values.empty()) backend->CopyFromHost(view, values.data());
    return view;
  }

  // Of the positions that a device owns.
  TensorView RopeOf(Device device, const Stripe& stripe) {
    const std::vector<int64_t> sequence = std::exchange(running, {0});
    const TensorView rope =
        Random(device, 5, {{0, static_cast<int32_t>(stripe.Below(shape.positions)), 0}}, stripe, shape.head_dim);
    running = sequence;
    return rope;
  }

  // Factors of q and k, which depend on the KV head and the dimension.
  TensorView Factors(Device device) {
    std::vector<float> values;
    for (int i = 0; i < shape.kv_heads * shape.head_dim; ++i)
      values.push_back(0.5F + 0.125F * static_cast<float>(i % 19));
    memory.push_back(backend->Allocate(device, static_cast<int64_t>(values.size() * sizeof(float))));
    const TensorView view = MakeView(memory.back().data(), DType::kF32, device, shape.kv_heads, shape.head_dim);
    backend->CopyFromHost(view, values.data());
    return view;
  }

  // Makes the call of so many rows of every sequence, from where it is on; 0: it is not in the pass.
  void Prepare(const std::vector<int32_t>& counts, int window) {
    layout = {};
    running.clear();
    for (size_t s = 0; s < counts.size(); ++s) {
      if (counts[s] == 0) continue;
      layout.sequences.push_back({static_cast<int32_t>(layout.ids.size()), counts[s], done[s], pages[s]});
      layout.ids.resize(layout.ids.size() + static_cast<size_t>(counts[s]), 0);
      running.push_back(static_cast<int64_t>(s));
    }
    for (int i = 0; i < stripes; ++i) {
      const auto at = static_cast<size_t>(i);
      const Device device = backend->devices()[at];
      const Stripe stripe{i, stripes};
      backend->UploadPass(*passes[at], layout);
      const std::vector<DealtRows> rows = DealPass(layout, stripe);
      AttentionCall& part = call.parts[at];
      part.site = call.site;
      part.q = Random(device, 1, rows, stripe, shape.heads * shape.head_dim);
      part.k = Random(device, 2, rows, stripe, shape.kv_heads * shape.head_dim);
      part.v = Random(device, 3, rows, stripe, shape.kv_heads * shape.head_dim);
      part.out = Random(device, 4, rows, stripe, shape.heads * shape.head_dim);
      part.rope = RopeOf(device, stripe);
      part.cache = caches[at].get();
      part.pass = passes[at].get();
      part.num_heads = shape.heads;
      part.window = window;
      part.dilated = shape.pairs;
      part.first_head = shape.first_head;
      part.exp_table = shape.exp_table;
      part.score_cap = shape.score_cap;
      if (shape.smooths) part.qk_smooth = Factors(device);
    }
  }
  void Prepare(int32_t count, int window) { Prepare(std::vector<int32_t>{count}, window); }

  // Outputs in the order of the pass.
  std::vector<float> Run() {
    stripes > 1 ? backend->RingAttention(call) : backend->Attention(call.parts.front());
    const int64_t cols = int64_t{shape.heads} * shape.head_dim;
    std::vector<float> all(layout.ids.size() * static_cast<size_t>(cols));
    for (int i = 0; i < stripes; ++i) {
      const TensorView& from = call.parts[static_cast<size_t>(i)].out;
      std::vector<float> out(static_cast<size_t>(from.dim(0) * cols));
      if (!out.empty()) backend->CopyToHost(out.data(), from);
      const std::vector<DealtRows> dealt = DealPass(layout, {i, stripes});
      for (size_t s = 0; s < dealt.size(); ++s) {
        const PassLayout::Sequence& sequence = layout.sequences[s];
        for (int32_t row = 0; row < dealt[s].num_rows; ++row) {
          const int64_t position = Stripe{i, stripes}.Absolute(dealt[s].first_local + row);
          const int64_t to = sequence.first_row + position - sequence.start_position;
          std::copy_n(out.begin() + (dealt[s].first_row + row) * cols, cols, all.begin() + to * cols);
        }
      }
    }
    for (size_t s = 0; s < running.size(); ++s) {
      done[static_cast<size_t>(running[s])] += layout.sequences[s].num_rows;
    }
    return all;
  }
  // Prepares and runs passes of so many rows, one after the other.
  template <typename Rows>
  std::vector<std::vector<float>> RunAll(const std::vector<Rows>& passes_rows, int window) {
    std::vector<std::vector<float>> all;
    for (const Rows& rows : passes_rows) {
      Prepare(rows, window);
      all.push_back(Run());
    }
    return all;
  }

  int stripes;
  RingShape shape;
  std::shared_ptr<Backend> backend;
  KvCacheSpec spec;
  std::vector<std::vector<int32_t>> pages;  // by sequence
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<std::unique_ptr<Pass>> passes;
  std::vector<Buffer> memory;
  PassLayout layout;
  RingAttentionCall call;
  std::vector<int64_t> running;  // sequences of the pass
  std::vector<int32_t> done;     // positions by sequence
};

}  // namespace stoch::test
