// SPDX-License-Identifier: Apache-2.0
// Linears on a GPU: which route a launch takes, how the work is cut, with how much shared memory and scratch.
//
// The launch, the memory plan, `stoch inspect` and a table test over GPUs that nobody has to own read the same plan;
// nothing else chooses. Bits: all SC and all fp32 routes give the same, so the choice is invisible.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/calls.h"
#include "kernels/plan/bit_products.h"
#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/linear/mixed_traits.h"
#include "kernels/plan/linear/route.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

// Matrices that one launch takes, which share f(x).
struct LinearShape {
  int64_t tokens = 0;
  int64_t in_features = 0;
  std::span<const int64_t> out_features;  // of 1..kMaxScTasks matrices
};
inline constexpr int kMaxScTasks = 4;

// The weights of such a launch, as plans see them.
enum class LinearKind : uint8_t {
  kSc,     // one operator
  kMixed,  // extras, integers or multiplier tables
  kExact,  // fp32
  kFixed,  // fp32 as products of integers
  kHalf,   // the fp16 baseline
};
struct LinearOperand {
  LinearKind kind = LinearKind::kSc;
  ScTraits sc = {};        // kSc
  MixedTraits mixed = {};  // kMixed
  int value_bytes = 4;     // kExact: of a number in memory
};

// A call, as the host knows it.
struct LinearPass {
  Prologue prologue = Prologue::kNone;
  bool aligned = true;        // operands of f(x), and their rows, begin at multiples of 16 bytes
  bool only_largest = false;  // LinearCall::only_largest
  bool observed = false;      // an observer asks for the lengths of rows
  bool recorded = false;      // into a graph: the host waits for nothing
};

// Who quantizes the activations of an SC route.
enum class ScQuantizer : uint8_t {
  kKernel,   // the kernel itself
  kByChunk,  // sc/batch/quantize.cu: a warp a chunk
  kByRow,    // prologue/activations.cu: a block a row
  kStreams,  // sc/tensor_core/streams.cu: codes go to streams without passing through device memory
};

// How tiles of kScTiles and kScTilesSplit count.
enum class TileForm : uint8_t {
  kStreams,  // bits of activations and thermometers of weights, in binary products
  kClosed,   // the closed form: fewer bits, and int8 elements (kernels/sc/closed_form/tile_form.h)
  kInt8,     // the closed form without binary products (kernels/sc/closed_form/int8_form.h)
};

// How blocks of kScBatch share the chunks of all tiles.
struct BatchShares {
  int blocks = 0;
  int owners = 0;             // blocks that keep the outputs of whole tiles to themselves
  int helped = 0;             // the last chunks of each tile whose sums the other blocks leave them
  int64_t stored_chunks = 0;  // of each tile's: those whose sums go to memory
};

struct LinearPlan {
  LinearRoute route = LinearRoute::kScGeneric;
  ScQuantizer quantizer = ScQuantizer::kByRow;
  int tile_tokens = 0;  // rows of x of a launch, or of a tile; 0 where neither is cut
  int stages = 0;       // of a ring (kScBatch, kScPrompt); pairs of tiles ahead (kScFew, kScTable)
  TileForm tile_form = TileForm::kStreams;
  BitProducts sums = BitProducts::kBinary;  // kScTable: of what was looked up
  int blocks = 0;                           // of the grid; 0 where it follows from tiles alone or from what is resident
  int staged = 0;                           // kScDecode: chunks that a block stages at a time
  BatchShares shares;                       // kScBatch
  int64_t shared_bytes = 0;                 // dynamic shared memory of a block
  int64_t static_bytes = 0;                 // and at most that much static
  // Bytes of the workspace: what f(x) takes, quantized or as floats, and what the launch takes besides. Upper bounds.
  int64_t quantize_bytes = 0;
  int64_t launch_bytes = 0;
  int64_t scratch_bytes() const { return quantize_bytes + launch_bytes; }
};

// The plan of one launch.
// Requires: tokens >= 1, 1..kMaxScTasks out_features. Bounds: shared_bytes + static_bytes <= gpu.max_shared_bytes.
LinearPlan PlanLinear(const GpuTraits& gpu, const LinearOperand& weights, const LinearShape& shape,
                      const LinearPass& pass = {});

// Weights of a specification, as they will be: fixed-point ones of 16-bit numbers.
LinearOperand MakeLinearOperand(const LinearSpec& spec, int64_t in_features);

// The route of so many tokens for people: "table x8", "mixed few", "rows by length, each batch-wgmma x24",
// "mixed generic, because arith=int8".
std::string LinearRouteText(const GpuTraits& gpu, const LinearSpec& spec, const LinearShape& shape);

// The most scratch of launches of any of these matrices, at most kMaxScTasks together, for 1..shape.tokens tokens.
int64_t LinearScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, const LinearShape& shape);

}  // namespace stoch
