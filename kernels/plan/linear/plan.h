// SPDX-License-Identifier: Apache-2.0
// Linears on a GPU: which route a launch takes, how the work is cut, with how much shared memory and scratch.
//
// The launch, the memory plan, `stoch inspect` and CPU tests with the traits of many GPUs read the same plan; nothing
// else chooses. Bits: all SC routes give equal bits, and so do all fp32 routes, so the choice is invisible.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/calls.h"
#include "kernels/plan/bit_products.h"
#include "kernels/plan/gpu_traits.h"
#include "kernels/plan/handover.h"
#include "kernels/plan/linear/mixed_traits.h"
#include "kernels/plan/linear/route.h"
#include "kernels/plan/sc_traits.h"

namespace stoch {

// Matrices that one launch takes, which share f(x).
struct LinearShape {
  int64_t tokens = 0;
  int64_t in_features = 0;
  std::span<const int64_t> out_features;  // output features of each of 1..kMaxScTasks matrices
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
  int value_bytes = 4;     // kExact: bytes of a number in memory
};

// A call, as the host knows it.
struct LinearPass {
  Prologue prologue = Prologue::kNone;
  bool aligned = true;        // operands of f(x), and their rows, begin at multiples of 16 bytes
  bool only_largest = false;  // LinearCall::only_largest
  bool observed = false;      // an observer asks for the lengths of rows
  bool recorded = false;      // recorded into a graph, so the host cannot wait
};

// Who quantizes the activations of an SC route.
enum class ScQuantizer : uint8_t {
  kKernel,   // the kernel itself
  kByChunk,  // sc/batch/quantize.cu: a warp per chunk
  kByRow,    // prologue/activations.cu: a block per row
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
  int owners = 0;             // blocks that accumulate whole tiles in registers; 0: none
  int helped = 0;             // last chunks of each tile, which the other blocks multiply and the owners add
  int64_t stored_chunks = 0;  // chunks of each tile whose partials go to memory
};

struct LinearPlan {
  LinearRoute route = LinearRoute::kScGeneric;
  ScQuantizer quantizer = ScQuantizer::kByRow;
  // How x arrives and the outputs leave.
  Handover handover = Handover::kMemory;
  int tile_tokens = 0;  // rows of x of a launch or of a tile; 0: x is not cut
  int stages = 0;       // stages of the ring; kScFew, kScTable: pairs of weight tiles that are loaded ahead
  TileForm tile_form = TileForm::kStreams;
  BitProducts sums = BitProducts::kBinary;  // kScTable: products that sum what was looked up
  int blocks = 0;            // blocks of the grid; 0: it follows from the tiles, or from how many blocks are resident
  int staged = 0;            // kScDecode: chunks that a block stages at a time
  BatchShares shares;        // kScBatch
  int64_t shared_bytes = 0;  // dynamic shared memory of a block
  int64_t static_bytes = 0;  // upper bound of its static shared memory
  // Upper bounds of the workspace in bytes: for f(x), quantized or as floats, and for the launch besides.
  int64_t quantize_bytes = 0;
  int64_t launch_bytes = 0;
  int64_t scratch_bytes() const { return quantize_bytes + launch_bytes; }
};

// The plan of one launch.
// Requires: tokens >= 1, 1..kMaxScTasks out_features. Bounds: shared_bytes + static_bytes <= gpu.max_shared_bytes.
LinearPlan PlanLinear(const GpuTraits& gpu, const LinearOperand& weights, const LinearShape& shape,
                      const LinearPass& pass = {});

// The weights that a specification describes. Floats are assumed to have 16 bits.
LinearOperand MakeLinearOperand(const LinearSpec& spec, int64_t in_features);

// Names for users the route of shape.tokens tokens: "table x8", "mixed few", "rows by length, each batch-wgmma x24",
// "mixed generic, because arith=int8".
std::string LinearRouteText(const GpuTraits& gpu, const LinearSpec& spec, const LinearShape& shape);

// Most bytes of scratch of a launch of any of these matrices, at most kMaxScTasks of them together, for 1..shape.tokens
// tokens.
int64_t LinearScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, const LinearShape& shape);

}  // namespace stoch
