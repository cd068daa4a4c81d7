// SPDX-License-Identifier: Apache-2.0
// Recorded cases of attention after RoPE: rebalanced q and k, faults, registers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "models/sc_model_config.h"
#include "research/calibrate/scales.h"
#include "research/golden/golden2_case.h"

namespace stoch::golden2 {
namespace {

constexpr int kQk = static_cast<int>(ScOperatorId::kQk);
constexpr int kAv = static_cast<int>(ScOperatorId::kAv);
constexpr int64_t kMostPositions = 1024;

// One recorded pass: rows start.. of the query heads, over all positions.
struct Attended {
  std::vector<HostMatrix> q, k, v;
  std::vector<float> smooth;  // [kv_heads][head_dim], or empty
  ScConfig config;
  int64_t start = 0;
  int layer = 0;
  uint32_t sequence = 0;

  int64_t heads() const { return static_cast<int64_t>(q.size()); }
  int64_t kv_heads() const { return static_cast<int64_t>(k.size()); }
  int64_t rows() const { return q.front().rows; }
  int64_t positions() const { return k.front().rows; }
  int64_t head_dim() const { return q.front().cols; }
  int64_t group() const { return heads() / kv_heads(); }
};

struct Parts {
  std::vector<int32_t> acc_qk, acc_av;
  std::vector<float> scores, out;
};

ScSite SiteOf(const Attended& a, int op, int64_t unit, int64_t position) {
  ScSite site{.layer = a.layer, .op = op, .unit = unit};
  site.first_row = FaultRow(a.sequence, position);
  return site;
}

void Append(const std::vector<float>& from, std::vector<float>* to) { to->insert(to->end(), from.begin(), from.end()); }

Parts ByReference(const Attended& a) {
  Parts parts;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim())));
  for (int64_t h = 0; h < a.heads(); ++h) {
    const int64_t g = h / a.group();
    HostMatrix q = a.q[static_cast<size_t>(h)], k = a.k[static_cast<size_t>(g)];
    if (!a.smooth.empty()) {
      const std::span<const float> s(a.smooth.data() + g * a.head_dim(), static_cast<size_t>(a.head_dim()));
      q = Smoothed(q, s, false);
      k = Smoothed(k, s, true);
    }
    const ScSite k_site = SiteOf(a, kQk, g, 0), v_site = SiteOf(a, kAv, g, 0);
    const ReferenceProduct qk = MultiplyReference(q, k, a.config, {}, SiteOf(a, kQk, h, a.start), &k_site);
    HostMatrix p{a.rows(), a.positions(), std::vector<float>(static_cast<size_t>(a.rows() * a.positions()), 0.0f)};
    for (int64_t n = 0; n < a.rows(); ++n) {
      for (int64_t t = 0; t < a.positions(); ++t) {
        const bool seen = t <= a.start + n;
        parts.acc_qk.push_back(seen ? qk.acc[static_cast<size_t>(n * a.positions() + t)] : 0);
        p.row(n)[t] = seen ? qk.y.row(n)[t] * scale : 0.0f;
        parts.scores.push_back(p.row(n)[t]);
      }
      SoftmaxReference(p.row(n), a.start + n + 1);
    }
    const ReferenceProduct av =
        PerTokenReference(p, a.v[static_cast<size_t>(g)], a.config, {}, a.start, SiteOf(a, kAv, h, 0), v_site);
    parts.acc_av.insert(parts.acc_av.end(), av.acc.begin(), av.acc.end());
    Append(av.y.values, &parts.out);
  }
  return parts;
}

// Rows [first, first + rows) of heads of positions that count from `from`, side by side; zeros before them.
std::vector<float> SideBySide(const std::vector<HostMatrix>& heads, int64_t first, int64_t rows, int64_t from) {
  std::vector<float> values;
  for (int64_t row = first; row < first + rows; ++row) {
    for (const HostMatrix& head : heads) {
      for (int64_t d = 0; d < head.cols; ++d) values.push_back(row < from ? 0.0f : head.row(row - from)[d]);
    }
  }
  return values;
}

// The cache is filled up to the first row, then the rows attend. RoPE is by angles of 0.
std::vector<float> OnBackend(Backend& backend, const Attended& a) {
  const Device device = backend.devices()[0];
  constexpr int kPageTokens = 64;
  KvCacheSpec spec;
  spec.num_layers = 1;
  spec.num_kv_heads = static_cast<int>(a.kv_heads());
  spec.head_dim = static_cast<int>(a.head_dim());
  spec.num_pages = (a.positions() + kPageTokens - 1) / kPageTokens;
  spec.mode = AttentionMode::kPerToken;
  spec.qk = MakeScOperator(a.config);
  spec.av = MakeScOperator(a.config);
  spec.smooths_qk = !a.smooth.empty();
  const auto cache = backend.MakeKvCache(device, spec);
  const auto pass = backend.MakePass(device, {a.positions(), 1, spec.num_pages});
  std::vector<int32_t> pages(static_cast<size_t>(spec.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<Buffer> buffers;
  const auto view = [&](int64_t rows, const std::vector<float>& values) {
    Buffer& buffer = buffers.emplace_back(backend.Allocate(device, static_cast<int64_t>(values.size()) * 4));
    const TensorView result =
        MakeView(buffer.data(), DType::kF32, device, rows, static_cast<int64_t>(values.size()) / rows);
    backend.CopyFromHost(result, values.data());
    return result;
  };
  std::vector<float> angles;
  for (int64_t t = 0; t < a.positions(); ++t) {
    angles.insert(angles.end(), static_cast<size_t>(a.head_dim() / 2), 1.0f);
    angles.insert(angles.end(), static_cast<size_t>(a.head_dim() / 2), 0.0f);
  }
  AttentionCall call;
  call.site = {a.layer, "attention"};
  call.rope = view(a.positions(), angles);
  call.cache = cache.get();
  call.pass = pass.get();
  call.num_heads = static_cast<int>(a.heads());
  if (!a.smooth.empty()) call.qk_smooth = view(a.kv_heads(), a.smooth);
  std::vector<float> out;
  for (const auto& [first, rows] : {std::pair(int64_t{0}, a.start), std::pair(a.start, a.rows())}) {
    if (rows == 0) continue;
    PassLayout layout;
    layout.ids.assign(static_cast<size_t>(rows), 0);
    layout.sequences.push_back({0, static_cast<int32_t>(rows), static_cast<int32_t>(first), pages, a.sequence});
    backend.UploadPass(*pass, layout);
    call.q = view(rows, SideBySide(a.q, first, rows, a.start));
    call.k = view(rows, SideBySide(a.k, first, rows, 0));
    call.v = view(rows, SideBySide(a.v, first, rows, 0));
    out.assign(static_cast<size_t>(rows * a.heads() * a.head_dim()), std::numeric_limits<float>::quiet_NaN());
    call.out = view(rows, out);
    backend.Attention(call);
    backend.CopyToHost(out.data(), call.out);
    backend.CheckFinite(device);
  }
  std::vector<float> by_head;
  for (int64_t h = 0; h < a.heads(); ++h) {
    for (int64_t n = 0; n < a.rows(); ++n) {
      const auto from = out.begin() + (n * a.heads() + h) * a.head_dim();
      by_head.insert(by_head.end(), from, from + a.head_dim());
    }
  }
  return by_head;
}

void Check(const Attended& a) {
  const bool alike = a.heads() > 0 && a.kv_heads() > 0 && a.heads() % a.kv_heads() == 0 && a.v.size() == a.k.size() &&
                     a.k.front().cols == a.head_dim() && a.v.front().cols == a.head_dim() &&
                     a.v.front().rows == a.positions();
  const bool fits =
      a.start >= 0 && a.rows() > 0 && a.positions() <= kMostPositions && a.start + a.rows() == a.positions();
  if (!alike || !fits || a.head_dim() < 2 || a.head_dim() % 2 != 0) throw InvalidInput("q, k and v do not fit");
  if (!a.smooth.empty() && static_cast<int64_t>(a.smooth.size()) != a.kv_heads() * a.head_dim()) {
    throw InvalidInput("smooth does not fit");
  }
}

}  // namespace

std::vector<HostMatrix> Case::Heads(const char* role) const {
  const SafetensorsTensor& tensor = Tensor(role);
  if (tensor.shape.size() != 3) throw InvalidInput(tensor.name + ": expected [heads, rows, head_dim]");
  const std::vector<float> values = file_.CopyF32(tensor);
  const int64_t size = tensor.shape[1] * tensor.shape[2];
  std::vector<HostMatrix> heads;
  for (int64_t h = 0; h < tensor.shape[0]; ++h) {
    heads.push_back({tensor.shape[1], tensor.shape[2], {values.begin() + h * size, values.begin() + (h + 1) * size}});
  }
  return heads;
}

void Case::SmoothQuantQk() {
  const std::vector<HostMatrix> q = Heads("q"), k = Heads("k");
  if (k.empty() || q.empty() || q.size() % k.size() != 0 || q.front().cols != k.front().cols) {
    throw InvalidInput("q and k do not fit");
  }
  const size_t group = q.size() / k.size();
  const auto alpha = fields_.at("alpha").get<double>();
  std::vector<float> smooth;
  for (size_t g = 0; g < k.size(); ++g) {
    std::vector<float> largest = LargestOfColumns(q[g * group]);
    for (size_t h = g * group + 1; h < (g + 1) * group; ++h) {
      const std::vector<float> other = LargestOfColumns(q[h]);
      for (size_t d = 0; d < largest.size(); ++d) largest[d] = std::max(largest[d], other[d]);
    }
    Append(SmoothQuantQkScales(largest, LargestOfColumns(k[g]), alpha), &smooth);
  }
  const SafetensorsTensor& tensor = Tensor("smooth");
  const std::vector<float> expected = file_.CopyF32(tensor);
  if (tolerance() == 0) return SameBits("smooth", smooth, expected);
  if (smooth.size() != expected.size()) return Fail("smooth has another size");
  for (size_t i = 0; i < smooth.size(); ++i) {
    Near("smooth[" + std::to_string(i) + "]", static_cast<double>(smooth[i]), static_cast<double>(expected[i]));
  }
}

void Case::Attention() {
  Attended a;
  a.q = Heads("q");
  a.k = Heads("k");
  a.v = Heads("v");
  a.config = ConfigOf(fields_.at("sc"));
  a.start = fields_.at("start_position").get<int64_t>();
  a.layer = fields_.at("layer").get<int>();
  a.sequence = fields_.at("sequence").get<uint32_t>();
  if (fields_.at("tensors").contains("smooth")) {
    const std::vector<float> given = file_.CopyF32(Tensor("smooth"));
    const size_t copies = Tensor("smooth").shape.size() == 1 ? a.k.size() : 1;
    for (size_t i = 0; i < copies; ++i) Append(given, &a.smooth);
  }
  Check(a);
  const Parts parts = ByReference(a);
  Same("acc_qk", parts.acc_qk, Ints("acc_qk"));
  SameBits("scores", parts.scores, file_.CopyF32(Tensor("scores")));
  Same("acc_av", parts.acc_av, Ints("acc_av"));
  const std::vector<float> expected = file_.CopyF32(Tensor("out"));
  SameBits("out of the reference", parts.out, expected);
  SameBits("out", OnBackend(backend_, a), expected);
}

}  // namespace stoch::golden2
