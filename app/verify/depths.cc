// SPDX-License-Identifier: Apache-2.0
// Attention at depth: masks by absolute position, prompts against decoding, dilated attention against dense.

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "app/interrupt.h"
#include "app/verify/logits.h"
#include "app/verify/verify.h"
#include "engine/engine.h"
#include "kernels/dilated.h"
#include "kernels/math/elementary.h"
#include "kernels/math/quantize.h"
#include "kernels/math/random.h"
#include "kernels/math/reduce.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cli {
namespace {

constexpr int64_t kDepths[] = {300, 5000, 20000};
constexpr int64_t kDeepOfAll = 5000;  // positions that every shape gets
constexpr int64_t kContext = 32768;
constexpr int64_t kPassRows = 512;
constexpr int64_t kTail = 17;  // rows at the end of a depth that are compared
const std::vector<DilatedPair> kPairs = {{2048, 1}, {8192, 4}};
constexpr const char* kPairSettings = "attention=dilated,segments=2048:8192,dilation=1:4";
constexpr const char* kDenseAsPairs = "attention=dilated,segments=32768,dilation=1";

// ------------------------------------------------------------------------------------------------ one attention ----

constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 16;
constexpr int64_t kQCols = kHeads * kHeadDim;
constexpr int64_t kKvCols = kKvHeads * kHeadDim;

std::vector<float> Numbers(uint64_t stream, int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = RandomWeight(41, stream, i, 1.0f);
  return numbers;
}

// A float matrix on the first device.
struct Tensor {
  Tensor(Backend& owner, int64_t rows, int64_t cols, const float* values)
      : backend(owner), buffer(owner.Allocate(owner.devices()[0], rows * cols * int64_t{sizeof(float)})) {
    view = MakeView(buffer.data(), DType::kF32, owner.devices()[0], rows, cols);
    backend.CopyFromHost(view, values);
  }
  std::vector<float> Read() const {
    std::vector<float> values(static_cast<size_t>(view.numel()));
    backend.CopyToHost(values.data(), view);
    return values;
  }
  Backend& backend;
  Buffer buffer;
  TensorView view;
};

// Queries, keys and values of one sequence, and the attention of its rows.
class OneAttention {
 public:
  OneAttention(Backend& backend, int64_t depth, ScOperatorPtr op)
      : backend_(backend),
        op_(std::move(op)),
        q_(Numbers(1, depth * kQCols)),
        k_(Numbers(2, depth * kKvCols)),
        v_(Numbers(3, depth * kKvCols)) {
    KvCacheSpec spec;
    spec.num_layers = 1;
    spec.num_kv_heads = kKvHeads;
    spec.head_dim = kHeadDim;
    spec.num_pages = (depth + spec.page_tokens - 1) / spec.page_tokens;
    spec.mode = AttentionMode::kPerToken;
    spec.qk = op_;
    spec.av = op_;
    spec.dilated = true;
    for (int64_t page = spec.num_pages; page-- > 0;) pages_.push_back(static_cast<int32_t>(page));  // places, no order
    cache_ = backend.MakeKvCache(backend.devices()[0], spec);
    pass_ = backend.MakePass(backend.devices()[0], {kPassRows, 1, spec.num_pages});
    std::vector<float> still;  // cosines 1 and sines 0: rotation by nothing
    for (int64_t i = 0; i < depth * kHeadDim; ++i) still.push_back(i % kHeadDim < kHeadDim / 2 ? 1.0f : 0.0f);
    rope_ = std::make_unique<Tensor>(backend, depth, kHeadDim, still.data());
    // Keys and values of all but the last rows come into the cache; their own results are nobody's, so each row sees itself alone.
    const std::vector<DilatedPair> alone = {{1, 1}};
    for (int64_t begin = 0; begin < depth - kTail; begin += kPassRows) {
      Run(begin, std::min(kPassRows, depth - kTail - begin), alone, 1);
    }
  }

  // Rows [begin, begin + count).
  std::vector<float> Run(int64_t begin, int64_t count, std::span<const DilatedPair> pairs, int window = 0) {
    PassLayout layout;
    layout.ids.resize(static_cast<size_t>(count));
    layout.sequences = {{0, static_cast<int32_t>(count), static_cast<int32_t>(begin), pages_}};
    backend_.UploadPass(*pass_, layout);
    const Tensor q(backend_, count, kQCols, q_.data() + begin * kQCols);
    const Tensor k(backend_, count, kKvCols, k_.data() + begin * kKvCols);
    const Tensor v(backend_, count, kKvCols, v_.data() + begin * kKvCols);
    const Tensor out(backend_, count, kQCols, q_.data());
    AttentionCall call;
    call.site = {0, "attention"};
    call.q = q.view;
    call.k = k.view;
    call.v = v.view;
    call.rope = rope_->view;
    call.cache = cache_.get();
    call.pass = pass_.get();
    call.num_heads = kHeads;
    call.out = out.view;
    call.window = window;
    call.dilated = pairs;
    backend_.Attention(call);
    return out.Read();
  }

  // Row `n` as docs/sc_arithmetic.md words it. The mask of position t is that of t + shift: 0 is right.
  std::vector<float> Define(int64_t n, std::span<const DilatedPair> pairs, int64_t shift) const;

 private:
  struct Codes {
    float scale = 0;
    std::vector<int> levels;
  };
  Codes Quantize(const float* x, int64_t count) const {
    float largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
    Codes codes{BipolarScale(largest, op_->q_max), {}};
    for (int64_t i = 0; i < count; ++i) codes.levels.push_back(BipolarLevel(x[i], codes.scale, op_->q_max));
    return codes;
  }
  int Count(int64_t dim, int a, int b) const {
    const int count = op_->count(static_cast<int>(dim % op_->masks), std::abs(a), std::abs(b));
    return (a < 0) != (b < 0) ? -count : count;
  }

  Backend& backend_;
  ScOperatorPtr op_;
  std::vector<float> q_, k_, v_;
  std::vector<int32_t> pages_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Pass> pass_;
  std::unique_ptr<Tensor> rope_;
};

std::vector<float> OneAttention::Define(int64_t n, std::span<const DilatedPair> pairs, int64_t shift) const {
  const float inv_sqrt = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kHeadDim)));
  std::vector<float> out;
  for (int64_t head = 0; head < kHeads; ++head) {
    const int64_t column = head / (kHeads / kKvHeads) * kHeadDim;
    const Codes q = Quantize(q_.data() + n * kQCols + head * kHeadDim, kHeadDim);
    std::vector<int64_t> seen;
    std::vector<float> p;  // scores first
    std::vector<Codes> values;
    float largest = -INFINITY;
    for (int64_t t = 0; t <= n; ++t) {
      if (!pairs.empty() && TimesAdmitted(pairs, head, n, t) == 0) continue;
      const Codes k = Quantize(k_.data() + t * kKvCols + column, kHeadDim);
      int acc = 0;
      for (size_t d = 0; d < kHeadDim; ++d) acc += Count(static_cast<int64_t>(d), q.levels[d], k.levels[d]);
      seen.push_back(t);
      p.push_back(BipolarProduct(acc, op_->gain, q.scale, k.scale) * inv_sqrt);
      values.push_back(Quantize(v_.data() + t * kKvCols + column, kHeadDim));
      largest = std::max(largest, p.back());
    }
    float lanes[kRowLanes] = {};
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] = Exp(p[i] - largest);
      if (!pairs.empty()) p[i] = static_cast<float>(TimesAdmitted(pairs, head, n, seen[i])) * p[i];
      lanes[seen[i] % kRowLanes] = lanes[seen[i] % kRowLanes] + p[i];
    }
    const float sum = FoldLanes<kRowLanes>(lanes);
    for (size_t i = 0; i < p.size(); ++i) p[i] = (p[i] / sum) * values[i].scale;
    const Codes weights = Quantize(p.data(), static_cast<int64_t>(p.size()));
    for (size_t d = 0; d < kHeadDim; ++d) {
      int acc = 0;
      for (size_t i = 0; i < p.size(); ++i) acc += Count(seen[i] + shift, weights.levels[i], values[i].levels[d]);
      out.push_back((static_cast<float>(acc) * op_->gain) * weights.scale);
    }
  }
  return out;
}

bool Same(const float* a, const float* b, size_t count) { return std::memcmp(a, b, count * sizeof(float)) == 0; }

// The first and the last of the rows at the end, in one pass and alone.
CheckResult MaskAbsolute(const VerifyContext& context) {
  Backend& backend = *context.backend;
  ScConfig config;
  config.halve = true;
  const ScOperatorPtr op = MakeScOperator(config);
  std::vector<std::string> failed;
  for (const int64_t depth : kDepths) {
    ThrowIfInterrupted();
    OneAttention attention(backend, depth, op);
    for (const bool dilated : {false, true}) {
      const std::span<const DilatedPair> pairs = dilated ? std::span(kPairs) : std::span<const DilatedPair>();
      const std::string name = dilated ? "dilated" : "dense";
      const std::vector<float> rows = attention.Run(depth - kTail, kTail, pairs);
      const std::vector<float> last = attention.Run(depth - 1, 1, pairs);
      const std::vector<float> expected = attention.Define(depth - 1, pairs, 0);
      const std::vector<float> expected_first = attention.Define(depth - kTail, pairs, 0);
      const auto note = [&](bool right, const char* what) {
        if (!right) failed.push_back(fmt::format("{} row at {} {}", name, depth, what));
      };
      note(Same(rows.data(), expected_first.data(), kQCols), "at the begin of a pass");
      note(Same(rows.data() + (kTail - 1) * kQCols, expected.data(), kQCols), "at the end of a pass");
      note(Same(last.data(), expected.data(), kQCols), "alone");
      // A definition that would not tell one mask from the next would pass anything.
      note(!Same(last.data(), attention.Define(depth - 1, pairs, 1).data(), kQCols), "is the same one place further");
    }
  }
  if (!failed.empty()) return {false, fmt::format("not as defined: {}", fmt::join(failed, ", "))};
  return {true, fmt::format("rows at {} are their definition, dense and dilated", fmt::join(kDepths, ", "))};
}

// ------------------------------------------------------------------------------------------------- small models ----

struct SmallShape {
  int64_t layers, heads, kv_heads, head_dim;
};
constexpr SmallShape kShapes[] = {{1, 2, 1, 8}, {1, 4, 2, 16}, {2, 3, 3, 8}};

std::string NameOf(const SmallShape& shape) {
  return fmt::format("{}x{}/{}x{}", shape.layers, shape.heads, shape.kv_heads, shape.head_dim);
}

DecoderConfig ConfigOf(const SmallShape& shape) {
  DecoderConfig config;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = shape.layers;
  config.num_attention_heads = shape.heads;
  config.num_key_value_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.vocab_size = 64;
  config.max_position_embeddings = kContext;
  return config;
}

// Logits of the rows at the end of a depth, computed in pieces of so many rows.
class SmallModel {
 public:
  // stripes: of the backend's devices that share the positions.
  SmallModel(const VerifyContext& context, const SmallShape& shape, const std::string& settings, int64_t depth,
             int stripes = 1)
      : ids_(VerifyPrompt(ConfigOf(shape).vocab_size, depth)) {
    EngineOptions options;
    options.sc = ParseScModelConfig(std::vector{settings});
    options.context = depth;
    options.max_pass_rows = kPassRows;
    if (stripes > 1) {
      const auto devices = context.backend->devices().first(static_cast<size_t>(stripes));
      options.placement = SequenceSplit(ConfigOf(shape), devices, stripes);
    }
    engine_ = Engine::Open(context.backend, RandomModelFiles(NameOf(shape), ConfigOf(shape), 7), options);
    sequence_ = engine_->NewSequence(depth);
    sequence_->Append(std::span(ids_).first(ids_.size() - kTail));
    while (sequence_->pending() > 0) Step(std::min(kPassRows, sequence_->pending()), StepOutput::kNone);
  }

  std::vector<float> Tail(int64_t piece) {
    const auto before = static_cast<int64_t>(ids_.size()) - kTail;
    sequence_->Truncate(before);
    sequence_->Append(std::span(ids_).last(kTail));
    const int64_t vocab = engine_->config().vocab_size;
    std::vector<float> logits(static_cast<size_t>(kTail * vocab));
    while (sequence_->pending() > 0) {
      const int64_t rows = std::min(piece, sequence_->pending());
      const int64_t at = sequence_->computed() - before;
      Step(rows, StepOutput::kAll);
      engine_->ReadLogits(0, rows, logits.data() + at * vocab);
    }
    return logits;
  }

 private:
  void Step(int64_t rows, StepOutput output) {
    ThrowIfInterrupted();
    const std::vector<StepItem> items = {{sequence_.get(), rows, output}};
    engine_->Step(items);
  }

  std::vector<int32_t> ids_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Sequence> sequence_;  // dies before its engine
};

bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && Same(a.data(), b.data(), a.size());
}

// Calls compare(shape, depth, note) for each; what `note` gets makes the check fail.
template <typename Compare>
CheckResult OverDepths(const std::string& what, const Compare& compare) {
  std::vector<std::string> failed;
  for (const SmallShape& shape : kShapes) {
    for (const int64_t depth : kDepths) {
      // The time of a prompt grows with its square: the deepest is of the first shape alone.
      if (depth > kDeepOfAll && &shape != kShapes) continue;
      compare(shape, depth, [&](bool right, const std::string& how) {
        if (!right) failed.push_back(fmt::format("{} at {} {}", NameOf(shape), depth, how));
      });
    }
  }
  if (!failed.empty()) return {false, fmt::format("but: {}", fmt::join(failed, ", "))};
  return {true, fmt::format("{} at {} positions on {} random shapes, the deepest on one", what,
                            fmt::join(kDepths, ", "), std::size(kShapes))};
}

CheckResult DecodeVsPrefill(const VerifyContext& context) {
  return OverDepths("one pass, pieces and single tokens agree",
                    [&](const SmallShape& shape, int64_t depth, const auto& note) {
                      SmallModel model(context, shape, "preset=halved", depth);
                      const std::vector<float> pass = model.Tail(kTail);
                      note(Same(model.Tail(1), pass), "token by token");
                      note(Same(model.Tail(5), pass), "in pieces of 5");
                    });
}

// Devices that share the positions of a sequence; 1: none do.
int RingOf(const Backend& backend) {
  const auto devices = static_cast<int>(backend.devices().size());
  int count = 1;
  while (2 * count <= devices && IsStripeCount(2 * count)) count *= 2;
  return count;
}

CheckResult DilatedVsDense(const VerifyContext& context) {
  const int ring = RingOf(*context.backend);
  const std::string over = ring > 1 ? fmt::format(", on one device and over {}", ring) : "";
  return OverDepths("one segment without dilation is dense, two pairs are not, and decode as they prefill" + over,
                    [&](const SmallShape& shape, int64_t depth, const auto& note) {
                      const std::vector<float> dense = SmallModel(context, shape, "preset=halved", depth).Tail(kTail);
                      const std::vector<float> one = SmallModel(context, shape, kDenseAsPairs, depth).Tail(kTail);
                      note(Same(one, dense), "with dilation 1 differs from dense");
                      SmallModel model(context, shape, kPairSettings, depth);
                      const std::vector<float> pass = model.Tail(kTail);
                      note(!Same(pass, dense), "with two pairs is dense");
                      note(Same(model.Tail(1), pass), "with two pairs decodes otherwise");
                      if (ring == 1) return;
                      SmallModel dealt(context, shape, kPairSettings, depth, ring);
                      note(Same(dealt.Tail(kTail), pass), "with two pairs differs over several devices");
                      note(Same(dealt.Tail(1), pass), "with two pairs decodes otherwise over several devices");
                    });
}

}  // namespace

std::vector<Check> DepthChecks(const VerifyContext& context) {
  return {
      {"mask_absolute", "attention's rows are their definition, masks by absolute position, at 300 to 20000 positions",
       [context] { return MaskAbsolute(context); }},
      {"decode_vs_prefill", "decode steps and prompts agree in bits at 300 to 20000 positions",
       [context] { return DecodeVsPrefill(context); }},
      {"dilated_vs_dense", "dilated attention with dilation 1 is dense attention, at 300 to 20000 positions",
       [context] { return DilatedVsDense(context); }}};
}

}  // namespace stoch::cli
