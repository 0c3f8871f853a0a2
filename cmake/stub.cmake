# worker_svc/_C.pyi, the types of the compiled module. A wheel carries it; an editable install has it beside the sources
# (ignored by git), as it has the stubs of the protos.
if(SKBUILD_STATE STREQUAL "editable")
  set(kernels_stub "${CMAKE_SOURCE_DIR}/worker_svc/_C.pyi")
else()
  set(kernels_stub "${CMAKE_BINARY_DIR}/_C.pyi")
endif()
set(bindings "${CMAKE_SOURCE_DIR}/csrc/bindings")
add_custom_command(
  OUTPUT "${kernels_stub}"
  COMMAND "${Python_EXECUTABLE}" "${bindings}/stub.py" "${kernels_stub}"
  DEPENDS "${CMAKE_SOURCE_DIR}/csrc/ops.def" "${bindings}/stub.py" "${bindings}/_C.pyi.in"
  COMMENT "Generating worker_svc/_C.pyi"
  VERBATIM)
add_custom_target(quire_stub ALL DEPENDS "${kernels_stub}")

if(NOT SKBUILD_STATE STREQUAL "editable")
  install(FILES "${kernels_stub}" DESTINATION worker_svc)
endif()
