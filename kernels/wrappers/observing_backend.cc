// SPDX-License-Identifier: Apache-2.0
#include "kernels/wrappers/observing_backend.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/parallel_for.h"
#include "kernels/call_check.h"
#include "kernels/expert_site.h"
#include "kernels/family_check.h"
#include "kernels/math/elementary.h"
#include "kernels/math/nonlinear_table.h"
#include "kernels/math/reduce.h"

namespace stoch {
namespace {

// Prologue::kRmsNorm of one row, in place.
void RmsNorm(float* x, const float* weight, float eps, int64_t n, const NonlinearTable* table) {
  float lanes[kRowLanes] = {};
  for (int64_t begin = 0; begin < n; begin += kRowLanes) {
    const int64_t count = std::min<int64_t>(kRowLanes, n - begin);
    for (int64_t j = 0; j < count; ++j) lanes[j] = Fma(x[begin + j], x[begin + j], lanes[j]);
  }
  const float mean = FoldLanes<kRowLanes>(lanes) / static_cast<float>(n);
  const float r = table == nullptr ? 1.0f / Sqrt(mean + eps) : table->RsqrtAt(mean + eps);
  for (int64_t i = 0; i < n; ++i) x[i] = (x[i] * r) * weight[i];
}

// Rotates every head of one row in place; `angles` is the row of the rope table.
void Rotate(float* x, int64_t heads, int64_t head_dim, const float* angles) {
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < heads; ++h, x += head_dim) {
    for (int64_t i = 0; i < half; ++i) {
      const float x1 = x[i];
      const float x2 = x[half + i];
      x[i] = (x1 * angles[i]) - (x2 * angles[half + i]);
      x[half + i] = (x2 * angles[i]) + (x1 * angles[half + i]);
    }
  }
}

constexpr Device kHost{DeviceKind::kCpu, 0};

}  // namespace

float* ObservingBackend::Read(const TensorView& matrix, std::vector<float>* to) {
  const int64_t rows = matrix.dim(0);
  const int64_t cols = matrix.dim(1);
  if (matrix.numel() == 0) return to->data();
  // The last row ends its piece of memory: gaps before it are read and left out.
  const int64_t step = rows > 1 ? matrix.step(0) : cols;
  const int64_t count = (rows - 1) * step + cols;
  if (static_cast<int64_t>(to->size()) < count) to->resize(static_cast<size_t>(count));
  inner().CopyToHost(to->data(), MakeView(matrix.data, DType::kF32, matrix.device, count));
  for (int64_t row = 1; row < rows && step != cols; ++row) {
    std::copy_n(to->data() + row * step, cols, to->data() + row * cols);
  }
  return to->data();
}

void ObservingBackend::UploadPass(Pass& pass, const PassLayout& layout) {
  KeptLayout& kept = layouts_[&pass];
  kept = {layout, {}};
  for (PassLayout::Sequence& sequence : kept.layout.sequences) {
    sequence.pages = kept.pages.emplace_back(sequence.pages.begin(), sequence.pages.end());
  }
  inner().UploadPass(pass, layout);
}

template <typename Call>
float* ObservingBackend::ReadInput(const Call& call) {
  const int64_t rows = call.x.dim(0);
  const int64_t cols = call.x.dim(1);
  float* x = Read(call.x, &x_);
  if (call.prologue == Prologue::kRmsNorm) {
    norm_weight_.resize(static_cast<size_t>(cols));
    inner().CopyToHost(norm_weight_.data(), call.norm_weight);
    ParallelFor(rows, threads_,
                [&](int64_t i) { RmsNorm(x + i * cols, norm_weight_.data(), call.norm_eps, cols, call.table); });
  } else if (call.prologue == Prologue::kSiluMul) {
    const float* x2 = Read(call.x2, &x2_);
    ParallelFor(rows, threads_, [&](int64_t row) {
      for (int64_t i = row * cols; i < (row + 1) * cols; ++i) x[i] = Silu(x[i]) * x2[i];
    });
  }
  return x;
}

void ObservingBackend::Linear(const LinearCall& call) {
  if (observer_ != nullptr) {
    CheckLinear(call);
    const int64_t cols = call.x.dim(1);
    const float* x = ReadInput(call);
    if (call.x.dim(0) > 0) observer_->OnLinear(call, x, call.x.dim(0), cols, cols);
  }
  inner().Linear(call);
}

// As the CPU backend shows them: one linear for each expert that has rows (kernels/expert_site.h).
void ObservingBackend::ExpertLinear(const ExpertLinearCall& call) {
  if (observer_ != nullptr && call.chosen.numel() > 0) {
    CheckExpertLinear(call);
    const int64_t cols = call.x.dim(1);
    const int64_t row_slots = call.x.dim(0) == call.chosen.dim(0) ? call.chosen.dim(1) : 1;
    const float* x = ReadInput(call);
    std::vector<int32_t> chosen(static_cast<size_t>(call.chosen.numel()));
    inner().CopyToHost(chosen.data(), call.chosen);
    for (int64_t expert = 0; expert < call.weights.front()->count(); ++expert) {
      std::vector<float> rows;
      for (size_t s = 0; s < chosen.size(); ++s) {
        const float* row = x + static_cast<int64_t>(s) / row_slots * cols;
        if (chosen[s] == expert) rows.insert(rows.end(), row, row + cols);
      }
      if (rows.empty()) continue;
      const auto count = static_cast<int64_t>(rows.size()) / cols;
      const std::string name = ExpertSiteName(call.site.op, expert);
      LinearCall shown;
      shown.site = {call.site.layer, name};
      shown.x = MakeView(rows.data(), DType::kF32, kHost, count, cols);
      observer_->OnLinear(shown, rows.data(), count, cols, cols);
    }
  }
  inner().ExpertLinear(call);
}

void ObservingBackend::Attention(const AttentionCall& call) {
  if (observer_ != nullptr) {
    if (RunApart(call)) return;
    const auto found = layouts_.find(call.pass);
    if (found == layouts_.end()) throw InvalidInput(SiteName(call.site) + ": its pass was uploaded elsewhere");
    const PassLayout& layout = found->second.layout;
    CheckAttentionHandles(call);
    CheckAttention(call, static_cast<int64_t>(layout.ids.size()));
    float* q = Read(call.q, &q_);
    float* k = Read(call.k, &k_);
    float* v = Read(call.v, &v_);
    const float* rope = Read(call.rope, &rope_);
    const int64_t head_dim = call.cache->spec().head_dim;
    for (const PassLayout::Sequence& sequence : layout.sequences) {
      ParallelFor(sequence.num_rows, threads_, [&](int64_t i) {
        const int64_t row = sequence.first_row + i;
        const float* angles = rope + (sequence.start_position + i) * head_dim;
        Rotate(q + row * call.q.dim(1), call.q.dim(1) / head_dim, head_dim, angles);
        Rotate(k + row * call.k.dim(1), call.k.dim(1) / head_dim, head_dim, angles);
      });
    }
    AttentionCall shown = call;
    shown.q = MakeView(q, DType::kF32, kHost, call.q.dim(0), call.q.dim(1));
    shown.k = MakeView(k, DType::kF32, kHost, call.k.dim(0), call.k.dim(1));
    shown.v = MakeView(v, DType::kF32, kHost, call.v.dim(0), call.v.dim(1));
    observer_->OnAttention(shown, layout);
  }
  inner().Attention(call);
}

void ObservingBackend::RunGraph(std::span<const Device> devices, std::string_view key,
                                const std::function<void()>& body) {
  if (observer_ != nullptr) return body();
  inner().RunGraph(devices, key, body);
}

}  // namespace stoch
