# SPDX-License-Identifier: Apache-2.0
# Build options, the compiler flags every target shares, and the helpers stoch_library, stoch_test, stoch_bench,
# stoch_fuzz. Found libraries are asked for where they are used (find_package in the folder that needs it).

option(STOCH_BUILD_TESTS "Build the tests" ON)
option(STOCH_BUILD_BENCH "Build the Google Benchmark suites" ON)
option(STOCH_PYTHON "Build the extension module of the Python package (pip install . does)" OFF)
option(STOCH_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
option(STOCH_WERROR "Warnings are errors: for developers and continuous integration, whose compilers are known" OFF)
set(STOCH_CUDA "AUTO" CACHE STRING "Build the CUDA backend: AUTO (nvcc works and a GPU is here), ON, OFF")
set_property(CACHE STOCH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(STOCH_CUDA_ARCHITECTURES "" CACHE STRING "CUDA architectures; empty: AUTO builds for the GPUs here, ON for all")
set(STOCH_GRAMMAR "AUTO" CACHE STRING "Build grammars and JSON schemas: AUTO (where tools/fetch_xgrammar fetched xgrammar), ON, OFF")
set_property(CACHE STOCH_GRAMMAR PROPERTY STRINGS AUTO ON OFF)
set(STOCH_SANITIZE "" CACHE STRING "Sanitizers for every target: address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(STOCH_CCACHE ccache)
if(STOCH_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${STOCH_CCACHE})
  # nvcc -E shows code for one architecture alone: what others have between #if and #endif would be taken from the cache as it
  # was before an edit. In this mode ccache looks at the files instead.
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 ${STOCH_CCACHE})
endif()

find_package(Threads REQUIRED)

include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake)

# -ffp-contract=off, --fmad=false and the IEEE division, square root and denormals of nvcc are part of the numerics
# contract: fused multiply-add only where the source says so, and the same bits from every compiler.
if(STOCH_WERROR)
  set(host_errors -Werror)
  set(nvcc_errors "-Werror=all-warnings;")
endif()
set(host_flags -Wall -Wextra ${host_errors} -Wshadow -Wnon-virtual-dtor -ffp-contract=off -fno-math-errno)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND host_flags -Wno-restrict)  # GCC 12 finds overlaps in "literal" + std::string (GCC bug 105651)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 17)
  list(APPEND host_flags -Wno-deprecated-declarations)  # clang looks into std::stable_sort of libstdc++ 12
endif()
list(JOIN host_flags "," nvcc_host_flags)
add_library(stoch_flags INTERFACE)
target_include_directories(stoch_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(stoch_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${host_flags};-Wconversion;-Wno-sign-conversion>"
  "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-prec-div=true;-prec-sqrt=true;-ftz=false>"
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;${nvcc_errors}-Xcompiler=${nvcc_host_flags}>"
  # 177, declared but never referenced: what one architecture uses is unused while another is compiled.
  "$<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177>")
if(STOCH_SANITIZE)
  target_compile_options(stoch_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${STOCH_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(stoch_flags INTERFACE -fsanitize=${STOCH_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Instrumented code confuses GCC's flow analysis (inside std::regex, for one).
    target_compile_options(stoch_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  endif()
  if(STOCH_SANITIZE MATCHES thread)
    # The thread sanitizer knows locks, not the fences that Asio adds to them.
    target_compile_definitions(stoch_flags INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()
if(STOCH_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "STOCH_FUZZ needs clang, got ${CMAKE_CXX_COMPILER_ID}: configure with --preset fuzz")
  endif()
  # Coverage feedback in every library under test; the fuzzer's main only in the fuzz targets.
  target_compile_options(stoch_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
  target_link_options(stoch_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# stoch_find_sqlite(): SQLite3::SQLite3, as CMake calls it since 4.3. A macro, as found targets belong to the calling folder.
macro(stoch_find_sqlite)
  find_package(SQLite3 3.37 REQUIRED)
  if(NOT TARGET SQLite3::SQLite3)
    add_library(SQLite3::SQLite3 ALIAS SQLite::SQLite3)
  endif()
endmacro()

# stoch_library(NAME SOURCES... [DEPENDS libs...]): a static library with the shared flags.
function(stoch_library name)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  add_library(${name} STATIC ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:stoch_flags> ${arg_DEPENDS})
endfunction()

# stoch_test(NAME SOURCES... [DEPENDS libs...] [LABELS labels...] [TIMEOUT seconds] [SHARDS n]): one GoogleTest program,
# one ctest entry, or n that run its cases side by side. Labels: unit (the default), cuda, multi_gpu, slow.
function(stoch_test name)
  cmake_parse_arguments(arg "" "TIMEOUT;SHARDS" "DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE stoch_flags ${arg_DEPENDS} GTest::gtest_main)
  set(labels ${arg_LABELS})
  if(NOT labels)
    set(labels unit)
  endif()
  set(timeout ${arg_TIMEOUT})
  if(NOT timeout)
    set(timeout 600)
  endif()
  if(STOCH_SANITIZE)
    math(EXPR timeout "${timeout} * 4")
  endif()
  if(NOT arg_SHARDS)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout})
    return()
  endif()
  math(EXPR last "${arg_SHARDS} - 1")
  foreach(shard RANGE ${last})
    add_test(NAME ${name}.${shard} COMMAND ${name})
    set_tests_properties(${name}.${shard} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()

# stoch_bench(NAME SOURCES... [DEPENDS libs...]): one Google Benchmark program.
function(stoch_bench name)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE stoch_flags ${arg_DEPENDS} benchmark::benchmark benchmark::benchmark_main)
endfunction()

# stoch_fuzz(NAME SOURCES... [DEPENDS libs...]): one libFuzzer program (LLVMFuzzerTestOneInput in SOURCES); nothing
# unless STOCH_FUZZ is on.
function(stoch_fuzz name)
  if(NOT STOCH_FUZZ)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE stoch_flags ${arg_DEPENDS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
