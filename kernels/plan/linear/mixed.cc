// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/linear/mixed.h"

#include <algorithm>

#include "kernels/plan/divide_up.h"
#include "kernels/plan/linear/sc.h"
#include "kernels/plan/scratch_layout.h"

namespace stoch {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kExtremesBytes = 12;  // Extremes of kernels/cuda/device/reduce.cuh

// Most rows of a call that the decode kernel takes, a few at a time.
constexpr int64_t kDecodeRows = 32;
// Most rows of a call for which launches of kMixedFew, kMixedTable and kMixedBatch beat one product of a prompt
// (docs/tuning/batch.md).
constexpr int64_t kLookupRows = 128;
constexpr int64_t kTableRows = kMaxBatchTableTokens;  // most rows of one launch of kMixedFew or kMixedTable
static_assert(kLookupRows >= kDecodeRows);
// Least rows of a call for which one product of a prompt beats several launches of steps.
constexpr int64_t kPromptRows = 33;
static_assert(kPromptRows > kDecodeRows);
// With more rows than this, one block per row of mixed/prepare.cu fills the GPU.
constexpr int64_t kMaxClusterRows = 32;
constexpr int kMaxRanks = 8;  // most blocks of a row
// Least rows of a call that is cut into one product for each group of lengths; a call with fewer rows is one product at
// the longest length.
constexpr int64_t kGroupedRows = 384;
// Least rows of a call under the row rule whose rows are sorted by length, for which the host waits for the device.
constexpr int64_t kSortedRows = 32;

// Rows of the next launch if `left` rows are divided evenly over launches of at most `most` rows.
int64_t EvenPass(int64_t left, int64_t most) { return DivideUp(left, DivideUp(left, most)); }

bool IsPlain(const GpuTraits& gpu, const MixedTraits& weight) {
  return weight.is_plain && weight.dims.chunk_d <= kDecodeChunkDims &&
         weight.dims.dims * kFloat + kMixedPrepareStaticBytes <= gpu.max_shared_bytes;
}

bool CanDecode(const GpuTraits& gpu, const MixedTraits& weight) { return weight.has_bytes && IsPlain(gpu, weight); }

bool CanPrompt(const GpuTraits& gpu, const MixedTraits& weight) {
  return weight.nests && IsPlain(gpu, weight) && CanPrefillWgmma(gpu, weight.longest, true);
}

// The kernel of kMixedBatch is compiled only for a longest length of 128 cycles with direct ranks.
bool CanBatch(const GpuTraits& gpu, const MixedTraits& weight) {
  if (!CanPrompt(gpu, weight) || weight.longest.stoc_len != 128 || !weight.longest.direct_ranks) return false;
  const int64_t any = 1;  // the choice does not depend on the size of the weight
  return PlanScLinear(gpu, weight.longest, {kMaxMixedBatchTokens, weight.dims.dims, {&any, 1}}).route ==
         LinearRoute::kScBatch;
}

// kMixedFew or kMixedTable, whichever takes `rows` rows in one launch; kMixedDecode if neither does.
LinearRoute LookupRoute(const GpuTraits& gpu, const MixedTraits& weight, int64_t rows) {
  if (rows < 2 || rows > kTableRows || weight.slots > kMaxLookupLengths) return LinearRoute::kMixedDecode;
  const int64_t any = 1;
  const LinearPlan plan = PlanScLinear(gpu, weight.longest, {rows, weight.dims.dims, {&any, 1}});
  if (rows > plan.tile_tokens) return LinearRoute::kMixedDecode;  // several launches
  if (plan.route == LinearRoute::kScFew && weight.has_quarters) return LinearRoute::kMixedFew;
  if (plan.route == LinearRoute::kScTable && weight.has_residuals) return LinearRoute::kMixedTable;
  return LinearRoute::kMixedDecode;
}

// Rows of the largest launch of kMixedFew or kMixedTable on this GPU.
int64_t MostLookupRows(const GpuTraits& gpu, const MixedTraits& weight) {
  for (int64_t rows = kTableRows; rows > kMaxBatchFewTokens; rows /= 2) {
    if (LookupRoute(gpu, weight, rows) != LinearRoute::kMixedDecode) return rows;
  }
  return kMaxBatchFewTokens;
}

// The plan of the longest length, but with `route` and one launch for all rows of `shape`.
LinearPlan LikeLongest(const GpuTraits& gpu, const MixedTraits& weight, const LinearShape& shape, LinearRoute route) {
  LinearPlan plan = PlanScLinear(gpu, weight.longest, shape);
  plan.route = route;
  plan.quantizer = ScQuantizer::kByRow;
  plan.tile_tokens = static_cast<int>(shape.tokens);
  return plan;
}

// Whether the blocks of the decode kernel find the slots of one row themselves. Under the row rule every block then
// computes f(x) of the whole row, which takes too long with SiLU.
bool PicksItself(const MixedTraits& weight, const LinearPass& pass) {
  switch (weight.rule) {
    case SlotRule::kNone:
    case SlotRule::kChunk: return true;
    case SlotRule::kRow: return pass.prologue != Prologue::kSiluMul;
    case SlotRule::kApart: break;
  }
  return false;
}

int64_t SlotBytes(const ScDims& dims, int64_t rows) {
  return kMaxScTasks * (rows * dims.chunks + ScratchLayout::kAlignment);
}

}  // namespace

LinearPlan PlanMixedStep(const GpuTraits& gpu, std::span<const MixedTraits> weights, const LinearShape& shape,
                         int64_t done, const LinearPass& pass) {
  const int64_t left = shape.tokens - done;
  const MixedTraits& first = weights.front();
  const auto all = [&](const auto& takes) { return std::all_of(weights.begin(), weights.end(), takes); };
  if (left >= kMinMixedBatchTokens && all([&](const MixedTraits& weight) { return CanBatch(gpu, weight); })) {
    const int64_t rows = EvenPass(left, kMaxMixedBatchTokens);
    return LikeLongest(gpu, first, {rows, shape.in_features, shape.out_features}, LinearRoute::kMixedBatch);
  }
  const int64_t rows = EvenPass(left, MostLookupRows(gpu, first));
  const LinearRoute lookup = LookupRoute(gpu, first, rows);
  if (lookup != LinearRoute::kMixedDecode &&
      all([&](const MixedTraits& weight) { return LookupRoute(gpu, weight, rows) == lookup; })) {
    return LikeLongest(gpu, first, {rows, shape.in_features, shape.out_features}, lookup);
  }
  const bool fused =
      shape.tokens == 1 && !pass.observed && all([&](const MixedTraits& weight) { return PicksItself(weight, pass); });
  LinearPlan plan = PlanMixedDecode(
      gpu, first.any, {std::min<int64_t>(left, kMaxDecodeTokens), shape.in_features, shape.out_features}, fused);
  plan.route = LinearRoute::kMixedDecode;
  return plan;
}

PreparePlan PlanPrepare(const GpuTraits& gpu, const ScDims& dims, int64_t tokens, bool needs_norm) {
  PreparePlan plan;
  // Use more blocks per row until a block has at most kPrepareWarps / 2 chunks. A row of up to kPrepareWarps chunks
  // takes one block, which has a warp for each chunk.
  if (gpu.has_clusters && !needs_norm && tokens <= kMaxClusterRows && dims.chunks > kPrepareWarps) {
    while (plan.ranks < kMaxRanks && dims.chunks > plan.ranks * kPrepareWarps / 2) plan.ranks *= 2;
  }
  plan.rank_chunks = DivideUp(dims.chunks, plan.ranks);
  plan.shared_bytes = std::min(plan.rank_chunks * dims.chunk_d, dims.dims) * kFloat;
  return plan;
}

LinearRoute PlanMixedRows(const MixedTraits& weight, int64_t rows, const LinearPass& pass) {
  return rows >= kSortedRows && weight.can_sort && !pass.recorded ? LinearRoute::kMixedSorted
                                                                  : LinearRoute::kMixedGeneric;
}

LinearPlan PlanMixedLinear(const GpuTraits& gpu, const MixedTraits& weight, const LinearShape& shape,
                           const LinearPass& pass) {
  const int64_t rows = shape.tokens;
  if (rows <= kLookupRows && CanDecode(gpu, weight)) {
    LinearPlan plan = PlanMixedStep(gpu, {&weight, 1}, shape, 0, pass);
    if (plan.route != LinearRoute::kMixedDecode || rows <= kDecodeRows) return plan;
  }
  if (rows >= kPromptRows && CanPrompt(gpu, weight)) {
    LinearPlan plan = PlanScPrefill(gpu, weight.longest, shape, true);
    plan.route = LinearRoute::kMixedPrompt;
    return plan;
  }
  LinearPlan plan;
  plan.route = PlanMixedRows(weight, rows, pass);
  return plan;
}

LinearRoute PlanMixedPrompt(const GpuTraits& gpu, std::span<const ScTraits> orders, int64_t slots_per_row,
                            int64_t tokens) {
  const auto all = [&](const auto& takes) { return std::all_of(orders.begin(), orders.end(), takes); };
  if (orders.size() < 2 || slots_per_row > 1) return LinearRoute::kMixedPrompt;
  const bool fits =
      tokens >= kGroupedRows && all([&](const ScTraits& order) { return CanPrefillWgmma(gpu, order, true); });
  return fits ? LinearRoute::kMixedGroups : LinearRoute::kMixedPrompt;
}

namespace {

// Bytes of scratch of kMixedFew and kMixedTable for up to shape.tokens rows.
int64_t TableBytes(const GpuTraits& gpu, const MixedTraits& weight, const LinearShape& shape) {
  int64_t most = 0;
  for (int64_t rows = 2; rows <= std::min(shape.tokens, kTableRows); ++rows) {
    const LinearPlan plan = PlanScLinear(gpu, weight.longest, {rows, shape.in_features, shape.out_features});
    const bool takes = plan.route == LinearRoute::kScFew
                           ? HasQuarters(weight.longest)
                           : plan.route == LinearRoute::kScTable && weight.longest.has_residuals;
    if (!takes) continue;
    const int64_t gains = rows * weight.dims.chunks * kFloat + ScratchLayout::kAlignment;
    most = std::max(most, plan.launch_bytes + gains);
  }
  return most;
}

int64_t BatchBytes(const GpuTraits& gpu, const MixedTraits& weight, const LinearShape& shape) {
  if (shape.tokens < kMinMixedBatchTokens || !CanBatch(gpu, weight)) return 0;
  int64_t most = 0;
  for (int64_t rows = kMinMixedBatchTokens; rows <= std::min(shape.tokens, kMaxMixedBatchTokens); ++rows) {
    const auto see = [&](std::span<const int64_t> out_features) {
      most = std::max(most, PlanScLinear(gpu, weight.longest, {rows, shape.in_features, out_features}).launch_bytes);
    };
    see(shape.out_features);
    // Matrices may also be launched one by one. The work is cut differently then, so a single matrix may take more.
    for (const int64_t& out : shape.out_features) see({&out, 1});
  }
  return most + weight.dims.chunks * kMaxMixedBatchTokens * kFloat + ScratchLayout::kAlignment;
}

int64_t StepBytes(const GpuTraits& gpu, const MixedTraits& weight, const LinearShape& shape) {
  int64_t most = 0;
  for (int64_t rows = 1; rows <= std::min<int64_t>(shape.tokens, kMaxDecodeTokens); ++rows) {
    const LinearShape some{rows, shape.in_features, shape.out_features};
    most = std::max(most, PlanMixedDecode(gpu, weight.any, some, false).scratch_bytes());
  }
  const int64_t prepared = std::min(shape.tokens, kDecodeRows) * (weight.dims.padded + weight.dims.chunks * kFloat) +
                           2 * ScratchLayout::kAlignment;
  most = std::max(most, prepared + std::max(TableBytes(gpu, weight, shape), BatchBytes(gpu, weight, shape)));
  return most + SlotBytes(weight.dims, std::min(shape.tokens, kLookupRows));
}

// Bytes of scratch of kMixedPrompt and kMixedGroups besides the codes, at the longest length: shorter lengths have as
// many rows, with shorter streams.
int64_t RowGroupBytes(const GpuTraits& gpu, const MixedTraits& weight, const LinearShape& shape) {
  const int64_t padded = DivideUp(shape.tokens, kPrefillTileTokens) * kPrefillTileTokens;
  const int64_t order = (padded + 1) * static_cast<int64_t>(sizeof(int32_t)) + kMaxLengthGroups * kRowGroupBytes +
                        2 * ScratchLayout::kAlignment;
  return PlanScPrefill(gpu, weight.longest, shape, true).launch_bytes + order;
}

int64_t PromptBytes(const GpuTraits& gpu, const MixedTraits& weight, const LinearShape& shape) {
  return PlanScPrefill(gpu, weight.longest, shape, true).quantize_bytes + RowGroupBytes(gpu, weight, shape) +
         SlotBytes(weight.dims, shape.tokens);
}

// Bytes of scratch of kMixedSorted and kMixedGeneric.
int64_t RowsBytes(const LinearSpec& spec, const MixedTraits& weight, int64_t out_features, const LinearShape& shape) {
  const int64_t rows = shape.tokens;
  int64_t bytes = MixedPartBytes(*spec.sc, rows, shape.in_features);
  if (weight.can_sort) bytes += rows * (shape.in_features + out_features + 1) * kFloat;
  if (spec.extras != nullptr && !spec.extras->protected_channels.empty()) {
    bytes += rows * out_features * kFloat + MixedPartBytes(*spec.extras->protected_op, rows, shape.in_features);
  }
  return bytes;
}

}  // namespace

int64_t MixedPartBytes(const ScOperator& op, int64_t rows, int64_t cols) {
  const ScDims dims = MakeScDims(cols, op.config.chunk_d);
  const bool shares = rows > 1 && (op.config.granularity != ScGranularity::kPerRow || op.config.group_a > 1);
  constexpr int64_t kFaultRow = sizeof(uint64_t);
  int64_t per_row = cols * kFloat + dims.padded + dims.chunks * kFloat + 2 * kFloat + kFaultRow;
  if (shares) per_row += dims.chunks * kExtremesBytes;
  return rows * (per_row + dims.chunks * (kFloat + 1));  // metrics and slots
}

int64_t MixedScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, const LinearShape& shape) {
  const MixedTraits weight = MakeMixedTraits(spec, shape.in_features);
  int64_t most = 0;
  for (const int64_t out : shape.out_features) most = std::max(most, RowsBytes(spec, weight, out, shape));
  const bool decodes = CanDecode(gpu, weight);
  const bool prompts = CanPrompt(gpu, weight);
  for (size_t first = 0; first < shape.out_features.size(); first += kMaxScTasks) {
    const LinearShape some{
        shape.tokens, shape.in_features,
        shape.out_features.subspan(first, std::min<size_t>(kMaxScTasks, shape.out_features.size() - first))};
    if (decodes) most = std::max(most, StepBytes(gpu, weight, some));
    if (prompts) most = std::max(most, PromptBytes(gpu, weight, some));
  }
  return most;
}

}  // namespace stoch
