// SPDX-License-Identifier: Apache-2.0
#include "python/src/attention.h"

#include <numeric>
#include <span>
#include <string>
#include <string_view>

#include "models/decoder/pass_shape.h"
#include "python/src/base/arrays.h"
#include "python/src/base/errors.h"
#include "python/src/base/stream_order.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

TensorView Rows(const Array& array, std::string_view name, const OpenDevice& open) {
  TensorView view = array.view();
  const bool same = array.on_cpu() ? open.device.kind == DeviceKind::kCpu : view.device == open.device;
  if (!same || view.rank != 2 || view.dtype != DType::kF32 || !view.rows_dense()) {
    throw InvalidInput(std::string(name) + ": expected dense float32 rows on " + PlaceName(open.device));
  }
  view.device = open.device;
  return view;
}

}  // namespace

PromptAttention::PromptAttention(OpenDevice& open, AttentionMode mode, const KvCacheSpec::Products& products,
                                 int kv_heads, int head_dim, int64_t sequences, int64_t positions)
    : open_(open) {
  spec_.num_layers = 1;
  spec_.num_kv_heads = kv_heads;
  spec_.head_dim = head_dim;
  spec_.page_tokens = kKvPageTokens;
  spec_.num_pages = sequences * PagesOf(positions);
  spec_.mode = mode;
  spec_.qk = products.qk;
  spec_.av = products.av;
  if (products.qk_extras != nullptr || products.av_extras != nullptr) spec_.layers = {products};
  limits_ = {sequences * positions, sequences, PagesOf(positions)};
  const std::lock_guard lock(open_.mutex);
  cache_ = open_.backend->MakeKvCache(open_.device, spec_);
  pass_ = open_.backend->MakePass(open_.device, limits_);
}

PromptAttention::~PromptAttention() {
  if (WasForked()) {
    (void)cache_.release();
    (void)pass_.release();
    return;
  }
  const std::lock_guard lock(open_.mutex);
  cache_.reset();
  pass_.reset();
}

void PromptAttention::Upload(int64_t sequences, int64_t positions) {
  if (sequences == sequences_ && positions == positions_) return;
  sequences_ = 0;
  const auto pages = static_cast<size_t>(PagesOf(positions));
  std::vector<int32_t> numbers(static_cast<size_t>(sequences) * pages);
  std::iota(numbers.begin(), numbers.end(), 0);
  PassLayout layout;
  layout.ids.resize(static_cast<size_t>(sequences * positions));
  for (int64_t i = 0; i < sequences; ++i) {
    layout.sequences.push_back({static_cast<int32_t>(i * positions), static_cast<int32_t>(positions), 0,
                                std::span(numbers).subspan(static_cast<size_t>(i) * pages, pages)});
  }
  open_.backend->UploadPass(*pass_, layout);
  sequences_ = sequences;
  positions_ = positions;
}

void PromptAttention::Run(nb::handle q, nb::handle k, nb::handle v, nb::handle unit, nb::handle out, int64_t sequences,
                          uintptr_t stream) {
  RequireNotForked();
  const Array arrays[] = {Array::Import(q, "q", true), Array::Import(k, "k", true), Array::Import(v, "v", false),
                          Array::Import(unit, "unit", false), Array::Import(out, "out", true)};
  const nb::gil_scoped_release release;
  const std::lock_guard lock(open_.mutex);
  AttentionCall call;
  call.site = {-1, "attention"};
  call.q = Rows(arrays[0], "q", open_);
  call.k = Rows(arrays[1], "k", open_);
  call.v = Rows(arrays[2], "v", open_);
  call.rope = Rows(arrays[3], "unit", open_);
  call.out = Rows(arrays[4], "out", open_);
  call.cache = cache_.get();
  call.pass = pass_.get();
  call.num_heads = static_cast<int>(call.q.dim(1) / spec_.head_dim);
  const int64_t rows = call.q.dim(0);
  if (sequences < 1 || rows < 1 || rows % sequences != 0) throw InvalidInput("q has rows of no whole prompts");
  if (sequences > limits_.max_sequences || rows > limits_.max_rows ||
      PagesOf(rows / sequences) > limits_.max_pages_per_sequence) {
    throw InvalidInput("q has more rows than there is room for");
  }
  StreamOrder order(open_, stream);
  Upload(sequences, rows / sequences);
  open_.backend->Attention(call);
  order.End();
  if (open_.device.kind == DeviceKind::kCpu) CheckFinite(open_);
}

}  // namespace stoch::python
