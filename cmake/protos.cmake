# Python stubs of protos/quire/v1. A wheel carries them; an editable install has them beside the sources (ignored by
# git), where type checkers and editors see them.
file(GLOB QUIRE_PROTOS CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/protos/quire/v1/*.proto")

if(SKBUILD_STATE STREQUAL "editable")
  set(stub_root "${CMAKE_SOURCE_DIR}")
else()
  set(stub_root "${CMAKE_BINARY_DIR}/stubs")
endif()
set(stub_dir "${stub_root}/quire/v1")
file(MAKE_DIRECTORY "${stub_dir}")

find_program(PROTOC_GEN_MYPY protoc-gen-mypy REQUIRED)
find_program(PROTOC_GEN_MYPY_GRPC protoc-gen-mypy_grpc REQUIRED)

set(stubs "")
foreach(proto IN LISTS QUIRE_PROTOS)
  get_filename_component(name "${proto}" NAME_WE)
  list(APPEND stubs "${stub_dir}/${name}_pb2.py" "${stub_dir}/${name}_pb2.pyi"
       "${stub_dir}/${name}_pb2_grpc.py" "${stub_dir}/${name}_pb2_grpc.pyi")
endforeach()

add_custom_command(
  OUTPUT ${stubs}
  COMMAND "${Python_EXECUTABLE}" -m grpc_tools.protoc "--proto_path=${CMAKE_SOURCE_DIR}/protos"
          "--plugin=protoc-gen-mypy=${PROTOC_GEN_MYPY}"
          "--plugin=protoc-gen-mypy_grpc=${PROTOC_GEN_MYPY_GRPC}"
          "--python_out=${stub_root}" "--grpc_python_out=${stub_root}"
          "--mypy_out=quiet:${stub_root}" "--mypy_grpc_out=quiet:${stub_root}"
          ${QUIRE_PROTOS}
  DEPENDS ${QUIRE_PROTOS}
  COMMENT "Generating quire.v1 stubs"
  VERBATIM)
add_custom_target(quire_protos ALL DEPENDS ${stubs})
file(WRITE "${stub_dir}/__init__.py" "\"\"\"Generated from protos/quire/v1.\"\"\"\n")

if(NOT SKBUILD_STATE STREQUAL "editable")
  install(FILES ${stubs} "${stub_dir}/__init__.py" DESTINATION quire/v1)
endif()
