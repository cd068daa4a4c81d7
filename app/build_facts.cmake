# SPDX-License-Identifier: Apache-2.0
# Writes build_facts.h. Run at every build, so that the commit is right; touches the file only when a fact changed.
# Given: SOURCE_DIR, OUTPUT, VERSION, BUILD_TYPE, CUDA_VERSION; STOCH_COMMIT of the environment where there is no repository.

cmake_minimum_required(VERSION 3.25)

set(commit "unknown")
if(DEFINED ENV{STOCH_COMMIT})
  set(commit "$ENV{STOCH_COMMIT}")
endif()
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
  if(result EQUAL 0)
    set(commit "${described}")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "// Written by app/build_facts.cmake.
#pragma once

#define STOCH_VERSION \"${VERSION}\"
#define STOCH_COMMIT \"${commit}\"
#define STOCH_BUILD_TYPE \"${BUILD_TYPE}\"
#define STOCH_CUDA_VERSION \"${CUDA_VERSION}\"
" @ONLY)
