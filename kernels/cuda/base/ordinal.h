// SPDX-License-Identifier: Apache-2.0
// Which GPU a device number stands for.
#pragma once

namespace stoch::cuda {

// Device number i is GPU i. With STOCH_TEST_LOGICAL_GPUS=N, which is for tests of several devices on a machine with
// fewer, numbers 0 .. N - 1 share the GPUs in turn: each has streams, memory and tables of its own. The process reads it
// once.
int OrdinalOf(int device_index);

// With STOCH_TEST_LOGICAL_GPUS: whether device numbers that share a GPU share a stream too (STOCH_TEST_SHARED_STREAM=1),
// so that none of their kernels run side by side.
bool SharesStreams();

// Whether kernels of two device numbers may run side by side on one GPU. A kernel whose blocks wait for each other must
// not then: it might hold SMs that the other's blocks wait for.
bool ShareGpu(int device_index, int other_index);

// How many device numbers there are where `gpus` GPUs are usable.
int DeviceNumbers(int gpus);

}  // namespace stoch::cuda
