// SPDX-License-Identifier: Apache-2.0
// Maps device numbers, which the user gives, to CUDA ordinals of GPUs.
#pragma once

namespace stoch::cuda {

// The CUDA ordinal of device number `device_index`: the same number, except in tests of several devices on a machine
// with fewer GPUs. There STOCH_TEST_LOGICAL_GPUS=N makes device numbers 0 .. N - 1, dealt over the GPUs round robin;
// each number has its own stream, memory and tables. The variable is read once per process.
int OrdinalOf(int device_index);

// Whether device numbers on one GPU also share one stream, so that their kernels never run concurrently: only with both
// STOCH_TEST_LOGICAL_GPUS and STOCH_TEST_SHARED_STREAM set.
bool SharesStreams();

// Whether kernels of two different device numbers may run concurrently on one GPU. If so, a kernel whose blocks wait
// for each other must not be used: it could hold SMs that the other device number's waiting blocks need.
bool ShareGpu(int device_index, int other_index);

// Number of device numbers if `gpus` GPUs are usable: `gpus`, or N of STOCH_TEST_LOGICAL_GPUS if that is more.
int DeviceNumbers(int gpus);

}  // namespace stoch::cuda
