# SPDX-License-Identifier: Apache-2.0
# Which architectures CUDA code is compiled for, where STOCH_CUDA_ARCHITECTURES does not say.

# 80 carries PTX for newer GPUs; 90a has the instructions of Hopper alone.
set(STOCH_ALL_CUDA_ARCHITECTURES 80 90a-real)

# stoch_cuda_architectures(RESULT): STOCH_CUDA_ARCHITECTURES; where that is empty, all of them if STOCH_CUDA is ON, and if it is
# AUTO what the GPUs of this machine run of a build for all, so that nothing is tested that no release has. Empty if there is
# no GPU, none of compute capability 8.0 or newer, or no driver that answers.
function(stoch_cuda_architectures result)
  set(chosen ${STOCH_CUDA_ARCHITECTURES})
  if(NOT chosen AND STOCH_CUDA STREQUAL "ON")
    set(chosen ${STOCH_ALL_CUDA_ARCHITECTURES})
  elseif(NOT chosen)
    find_program(STOCH_NVIDIA_SMI nvidia-smi HINTS /usr/lib/wsl/lib)
    if(STOCH_NVIDIA_SMI)
      execute_process(COMMAND ${STOCH_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
        OUTPUT_VARIABLE listed ERROR_QUIET RESULT_VARIABLE status TIMEOUT 60)
      if(NOT status EQUAL 0)
        set(listed "")
      endif()
      string(REGEX MATCHALL "[0-9]+\\.[0-9]+" capabilities "${listed}")
      foreach(capability IN LISTS capabilities)
        if(capability VERSION_EQUAL 9.0)
          list(APPEND chosen 90a-real)
        elseif(capability VERSION_GREATER_EQUAL 8.0)
          list(APPEND chosen 80)
        endif()
      endforeach()
      list(REMOVE_DUPLICATES chosen)
      list(SORT chosen)
    endif()
  endif()
  set(${result} ${chosen} PARENT_SCOPE)
endfunction()
