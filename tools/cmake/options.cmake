# Compiler flags every target shares, and the helpers stoch_library, stoch_test, stoch_bench.

option(STOCH_BUILD_TESTS "Build the tests" ON)
option(STOCH_BUILD_BENCH "Build the Google Benchmark suites" ON)
set(STOCH_CUDA "AUTO" CACHE STRING "Build the CUDA backend: AUTO (when nvcc is found), ON, OFF")
set(STOCH_CUDA_ARCHITECTURES "90a" CACHE STRING "CUDA architectures to build for")
set(STOCH_SANITIZE "" CACHE STRING "Sanitizers for every target: address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(STOCH_CCACHE ccache)
if(STOCH_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${STOCH_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${STOCH_CCACHE})
endif()

find_package(Threads REQUIRED)

# -ffp-contract=off is part of the numerics contract: fused multiply-add only where the source says so.
add_library(stoch_flags INTERFACE)
target_include_directories(stoch_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(stoch_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
  -ffp-contract=off -fno-math-errno>)
if(STOCH_SANITIZE)
  target_compile_options(stoch_flags INTERFACE -fsanitize=${STOCH_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(stoch_flags INTERFACE -fsanitize=${STOCH_SANITIZE})
endif()

# stoch_library(NAME SOURCES... [DEPENDS libs...]): a static library with the shared flags.
function(stoch_library name)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  add_library(${name} STATIC ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC stoch_flags ${arg_DEPENDS})
endfunction()

# stoch_test(NAME SOURCES... [DEPENDS libs...] [LABELS labels...]): one GoogleTest program, one ctest entry.
function(stoch_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE stoch_flags ${arg_DEPENDS} GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set(labels ${arg_LABELS})
  if(NOT labels)
    set(labels unit)
  endif()
  set(timeout ${arg_TIMEOUT})
  if(NOT timeout)
    set(timeout 600)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout})
endfunction()

# stoch_bench(NAME SOURCES... [DEPENDS libs...]): one Google Benchmark program.
function(stoch_bench name)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE stoch_flags ${arg_DEPENDS} benchmark::benchmark benchmark::benchmark_main)
endfunction()
