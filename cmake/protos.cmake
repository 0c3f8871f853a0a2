# Python stubs of protos/quire: v1, and the protocols of others in facades. A wheel carries them; an editable install has them
# beside the sources (ignored by git), where type checkers and editors see them.
if(SKBUILD_STATE STREQUAL "editable")
  set(stub_root "${CMAKE_SOURCE_DIR}")
else()
  set(stub_root "${CMAKE_BINARY_DIR}/stubs")
endif()

find_program(PROTOC_GEN_MYPY protoc-gen-mypy REQUIRED)
find_program(PROTOC_GEN_MYPY_GRPC protoc-gen-mypy_grpc REQUIRED)

set(protos "")
set(stubs "")
foreach(package IN ITEMS v1 facades)
  set(stub_dir "${stub_root}/quire/${package}")
  file(MAKE_DIRECTORY "${stub_dir}")
  file(WRITE "${stub_dir}/__init__.py" "\"\"\"Generated from protos/quire/${package}.\"\"\"\n")
  file(GLOB package_protos CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/protos/quire/${package}/*.proto")
  set(package_stubs "")
  foreach(proto IN LISTS package_protos)
    get_filename_component(name "${proto}" NAME_WE)
    list(APPEND package_stubs "${stub_dir}/${name}_pb2.py" "${stub_dir}/${name}_pb2.pyi"
         "${stub_dir}/${name}_pb2_grpc.py" "${stub_dir}/${name}_pb2_grpc.pyi")
  endforeach()
  list(APPEND protos ${package_protos})
  list(APPEND stubs ${package_stubs})
  if(NOT SKBUILD_STATE STREQUAL "editable")
    install(FILES ${package_stubs} "${stub_dir}/__init__.py" DESTINATION "quire/${package}")
  endif()
endforeach()

add_custom_command(
  OUTPUT ${stubs}
  COMMAND "${Python_EXECUTABLE}" -m grpc_tools.protoc "--proto_path=${CMAKE_SOURCE_DIR}/protos"
          "--plugin=protoc-gen-mypy=${PROTOC_GEN_MYPY}"
          "--plugin=protoc-gen-mypy_grpc=${PROTOC_GEN_MYPY_GRPC}"
          "--python_out=${stub_root}" "--grpc_python_out=${stub_root}"
          "--mypy_out=quiet:${stub_root}" "--mypy_grpc_out=quiet:${stub_root}"
          ${protos}
  DEPENDS ${protos}
  COMMENT "Generating stubs of protos/quire"
  VERBATIM)
add_custom_target(quire_protos ALL DEPENDS ${stubs})
