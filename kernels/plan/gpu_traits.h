// SPDX-License-Identifier: Apache-2.0
// Capabilities of a GPU and of the code that runs on it: all that the choice of a kernel may depend on.
#pragma once

#include <cstdint>

namespace stoch {

// Choices never depend on the compute capability: a program without native code for a GPU runs PTX of an older
// architecture, whose kernels use neither clusters nor PDL.
struct GpuTraits {
  int compute_capability = 0;  // 90 for 9.0; only shown to users
  // Architecture that the running kernels were compiled for; 80 if they come from PTX of sm_80.
  int code_architecture = 0;
  int sm_count = 0;              // SMs
  int64_t max_shared_bytes = 0;  // shared memory that one block may ask for, static and dynamic together
  bool has_hopper_code = false;  // kernels are compiled for sm_90 or newer, so they can be launched with PDL
  bool has_clusters = false;     // thread block clusters: has_hopper_code, and the device can launch them
  bool has_binary_mma = false;   // mma.sync multiplies bits in hardware (8.0 to 9.0; later GPUs emulate it)
  bool has_wgmma = false;        // warpgroup MMA of sm_90a
  // Kernels of other device numbers may run on the GPU at the same time, so blocks must not wait for each other.
  bool is_shared = false;
  // LimitForTests lowered max_shared_bytes, so launches check what the smaller device would refuse.
  bool is_limited = false;

  // How much of attention over long sequences is done at a time. The scores of a group of tiles take at most
  // max_score_bytes, and its probabilities at most as many again: a group must fill the GPU, and all of a 2048-token
  // window should be one group. Long sequences are packed in batches of at most max_packed_positions positions, but at
  // least one whole sequence.
  int64_t max_score_bytes = int64_t{640} << 20;
  int32_t max_packed_positions = 131072;
  int32_t split_from = 0;  // contexts of at least so many positions are cut over the GPU; 0: the plan's own threshold
  // Resident blocks compute q k by look-ups for contexts of at least so many positions; 0: the plan's own threshold.
  int32_t lookup_from = 0;
  // In wide tiles, rows of at least so many positions list single large probabilities (kWideListed).
  int32_t list_from = 4096;
};

// Returns `traits` reduced by environment variables, so that one GPU can test what other GPUs run:
//   STOCH_TEST_SHARED_BYTES=N      max_shared_bytes is N at most: 101376 (99 KB) for compute capability 8.6, 8.9, 12.0
//   STOCH_TEST_NO_WGMMA=1          has_wgmma is false
//   STOCH_TEST_NO_BMMA=1           has_binary_mma and has_wgmma are false
//   STOCH_TEST_NO_CLUSTERS=1       has_clusters is false
//   STOCH_TEST_SCORE_BYTES=N       max_score_bytes is N at most, so that short prompts take many groups
//   STOCH_TEST_PACKED_POSITIONS=N  max_packed_positions is N at most, for the same reason
//   STOCH_TEST_SPLIT_FROM=N        split_from, so that short contexts are cut
//   STOCH_TEST_LOOKUP_FROM=N       lookup_from, so that short contexts take look-ups
//   STOCH_TEST_LIST_FROM=N         list_from, so that short rows list probabilities
// Errors: InvalidInput for a value that is not a number, or less shared memory than the 48 KB that every GPU has.
GpuTraits LimitForTests(GpuTraits traits);

}  // namespace stoch
