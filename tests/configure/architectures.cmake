# SPDX-License-Identifier: Apache-2.0
# cmake -DSTOCH_CUDA=... [-DSTOCH_CUDA_ARCHITECTURES=...] -DSOURCE_DIR=... -P this: prints what CUDA code is compiled for.
include(${SOURCE_DIR}/tools/cmake/cuda_architectures.cmake)
stoch_cuda_architectures(chosen)
list(JOIN chosen " " chosen)
message("${chosen}")
