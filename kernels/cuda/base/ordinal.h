// SPDX-License-Identifier: Apache-2.0
// Which GPU a device number stands for.
#pragma once

namespace stoch::cuda {

// Device number i is GPU i. With STOCH_TEST_LOGICAL_GPUS=N, which is for tests of several devices on a machine with
// fewer, numbers 0 .. N - 1 share the GPUs in turn: each has streams, memory and tables of its own. The process reads it
// once.
int OrdinalOf(int device_index);

// With STOCH_TEST_LOGICAL_GPUS: whether device numbers that share a GPU share a stream too (STOCH_TEST_SHARED_STREAM=1).
// Kernels with a barrier of their grid must not run side by side on one GPU: each might hold SMs that the other waits for.
bool SharesStreams();

// How many device numbers there are where `gpus` GPUs are usable.
int DeviceNumbers(int gpus);

}  // namespace stoch::cuda
