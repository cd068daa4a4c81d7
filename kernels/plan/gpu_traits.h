// SPDX-License-Identifier: Apache-2.0
// Capabilities of a GPU and of the code that runs on it: all that the choice of a kernel may depend on.
#pragma once

#include <cstdint>

namespace stoch {

// Choices never look at the compute capability: a program without native code for a GPU runs as PTX of an older
// architecture, which has neither clusters nor programmatic launches in it.
struct GpuTraits {
  int compute_capability = 0;    // 90 for 9.0: for people
  int code_architecture = 0;     // that the running kernels were compiled for, 80 where they come from PTX of sm_80
  int sm_count = 0;              // SMs
  int64_t max_shared_bytes = 0;  // shared memory that one block may ask for, static and dynamic together
  bool has_hopper_code = false;  // kernels wait for those before them themselves (programmatic dependent launch)
  bool has_clusters = false;     // thread block clusters: has_hopper_code, and the device launches them
  bool has_binary_mma = false;   // mma.sync multiplies bits in hardware (8.0 to 9.0; later ones emulate it)
  bool has_wgmma = false;        // warpgroup MMA of sm_90a
  bool is_shared = false;   // kernels of other devices run on the GPU meanwhile: blocks must not wait for each other
  bool is_limited = false;  // by LimitForTests: launches then check what a smaller device would refuse

  // How much of attention over long sequences is done at a time. A group of tiles has scores of so many bytes, and as
  // many of probabilities: it has to fill the GPU, and all of a 2048-token window should be one group. Long sequences
  // are packed so many positions at a time: whole sequences, at least one.
  int64_t max_score_bytes = int64_t{640} << 20;
  int32_t max_packed_positions = 131072;
  int32_t split_from = 0;   // contexts of so many positions are cut over the GPU; 0: as the plan has it
  int32_t lookup_from = 0;  // contexts of so many positions that resident blocks take have q k by look-ups; 0: the same
  int32_t list_from = 4096;  // rows of so many positions in wide tiles list single large probabilities (kWideListed)
};

// `traits` with less than the device has, so that one GPU can test what others run. Variables of the environment:
//   STOCH_TEST_SHARED_BYTES=N      max_shared_bytes is N at most: 101376 (99 KB) for compute capability 8.6, 8.9, 12.0
//   STOCH_TEST_NO_WGMMA=1          has_wgmma is false
//   STOCH_TEST_NO_BMMA=1           has_binary_mma and has_wgmma are false
//   STOCH_TEST_NO_CLUSTERS=1       has_clusters is false
//   STOCH_TEST_SCORE_BYTES=N       max_score_bytes is N at most, so that short prompts take many groups
//   STOCH_TEST_PACKED_POSITIONS=N  max_packed_positions is N at most, for the same reason
//   STOCH_TEST_SPLIT_FROM=N        split_from, so that short contexts are cut
//   STOCH_TEST_LOOKUP_FROM=N       lookup_from, so that short contexts take look-ups
//   STOCH_TEST_LIST_FROM=N         list_from, so that short rows list
// Errors: InvalidInput for a value that is not a number, or less shared memory than the 48 KB that every GPU has.
GpuTraits LimitForTests(GpuTraits traits);

}  // namespace stoch
