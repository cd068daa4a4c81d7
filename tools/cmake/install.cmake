# SPDX-License-Identifier: Apache-2.0
# cmake --install: the program with the demo model, the libraries behind stoch::engine, their headers and the CMake package
# `stoch`. A program outside says find_package(stoch) and links stoch::engine (examples/). `--component program` is the first
# two alone.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# What OpenBackend and Engine need, whatever that is: the libraries of this project that they link, all the way down.
function(stoch_collect_libraries target list)
  get_target_property(linked ${target} LINK_LIBRARIES)
  foreach(library IN LISTS linked)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" library "${library}")
    if(library MATCHES "^stoch_" AND TARGET ${library} AND NOT library IN_LIST ${list})
      list(APPEND ${list} ${library})
      stoch_collect_libraries(${library} ${list})
    endif()
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

add_library(stoch_public INTERFACE)
target_link_libraries(stoch_public INTERFACE stoch_engine stoch_registry)
set_target_properties(stoch_public PROPERTIES EXPORT_NAME engine)
add_library(stoch::engine ALIAS stoch_public)

set(libraries stoch_engine stoch_registry)
stoch_collect_libraries(stoch_engine libraries)
stoch_collect_libraries(stoch_registry libraries)
foreach(library IN LISTS libraries)
  target_compile_features(${library} PUBLIC cxx_std_20)
  # Headers of kernels/math hold float code: a program that calls it gets the same bits.
  target_compile_options(${library} INTERFACE $<INSTALL_INTERFACE:-ffp-contract=off>)
endforeach()
install(TARGETS stoch_public ${libraries} EXPORT stoch
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/stoch
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stoch)
install(TARGETS stoch RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
# What the program says of itself: a manual page and completions.
if(NOT CMAKE_CROSSCOMPILING)
  foreach(page "help man|${CMAKE_INSTALL_MANDIR}/man1|stoch.1"
      "completion bash|${CMAKE_INSTALL_DATADIR}/bash-completion/completions|stoch"
      "completion fish|${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d|stoch.fish")
    string(REPLACE "|" ";" page "${page}")
    list(POP_FRONT page words folder file)
    string(REPLACE " " "\" \"" words "${words}")
    install(CODE "file(MAKE_DIRECTORY \"${PROJECT_BINARY_DIR}/described/${folder}\")
      execute_process(COMMAND \"$<TARGET_FILE:stoch>\" \"${words}\" COMMAND_ERROR_IS_FATAL ANY
        OUTPUT_FILE \"${PROJECT_BINARY_DIR}/described/${folder}/${file}\")" COMPONENT program)
    install(FILES ${PROJECT_BINARY_DIR}/described/${folder}/${file} DESTINATION ${folder} COMPONENT program)
  endforeach()
endif()
if(TARGET stoch_mpi)  # as app/run_on_ranks.cc looks for it
  install(TARGETS stoch_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/stoch COMPONENT program)
endif()
# Looked for from the program's folder upwards (app/demo_model.h), so not where CMAKE_INSTALL_DATADIR may lie.
set(STOCH_DEMO_FILES README.md chat_template.jinja config.json generation_config.json model.safetensors tokenizer.model tokenizer_config.json)
list(TRANSFORM STOCH_DEMO_FILES PREPEND ${PROJECT_SOURCE_DIR}/demo/)
install(FILES ${STOCH_DEMO_FILES} DESTINATION share/stoch/demo COMPONENT program)
# Includes are written from the root of the project, so headers keep their folders. Backends and the server are inside.
install(DIRECTORY engine kernels loader models DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stoch FILES_MATCHING
  PATTERN "*.h" PATTERN kernels/cpu EXCLUDE PATTERN kernels/cuda EXCLUDE PATTERN engine/serve EXCLUDE
  PATTERN engine/gateway EXCLUDE PATTERN engine/ipc EXCLUDE PATTERN engine/worker EXCLUDE
  PATTERN models/demo EXCLUDE)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/stoch)
install(EXPORT stoch NAMESPACE stoch:: FILE stochTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/stochConfig.cmake.in
  ${PROJECT_BINARY_DIR}/stochConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/stochConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/stochConfig.cmake ${PROJECT_BINARY_DIR}/stochConfigVersion.cmake
  DESTINATION ${package_dir})
