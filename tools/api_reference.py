"""Writes the API reference: one Markdown page for each file of protos/quire/v1, from its comments.

The comments are the specification; this only sets them out, with links between types.
"""

import argparse
import importlib.resources
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent.parent / "protos"
PACKAGE = "quire/v1"
# Field numbers of descriptor.proto: a comment is found by the path of such numbers to its place.
_FILE_MESSAGES, _FILE_ENUMS, _FILE_SERVICES, _FILE_SYNTAX = 4, 5, 6, 12
_MESSAGE_FIELDS, _SERVICE_METHODS, _ENUM_VALUES = 2, 2, 2

type_name = FieldDescriptorProto.Type.Name


def compile_protos(protos: Path) -> list[FileDescriptorProto]:
    """Return the descriptors of the package's files, comments included, in order of their names.

    Args:
        protos: root of the import paths.

    Raises:
        ValueError: protoc refuses a file; it has said why on stderr.
    """
    files = sorted(str(path.relative_to(protos)) for path in (protos / PACKAGE).glob("*.proto"))
    with tempfile.NamedTemporaryFile() as out:
        includes = importlib.resources.files("grpc_tools") / "_proto"
        status = protoc.main(
            [
                *["protoc", f"--proto_path={protos}", f"--proto_path={includes}"],
                *["--include_source_info", f"--descriptor_set_out={out.name}", *files],
            ]
        )
        if status:
            raise ValueError(f"protoc ended with status {status}")
        return list(FileDescriptorSet.FromString(Path(out.name).read_bytes()).file)


@dataclass(frozen=True, slots=True)
class ProtoPage:
    """The page of one file.

    Attributes:
        file: what it describes.
        comments: text of each comment, by the path to what it is about.
    """

    file: FileDescriptorProto
    comments: dict[tuple[int, ...], str]

    @classmethod
    def of(cls, file: FileDescriptorProto) -> "ProtoPage":
        """Collect the comments of a file: those before and those behind what they are about."""
        comments = {}
        for location in file.source_code_info.location:
            parts = [location.leading_comments, location.trailing_comments]
            text = " ".join(line.strip() for part in parts for line in part.splitlines())
            if text.strip():
                comments[tuple(location.path)] = text.strip()
        return cls(file, comments)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the page, in Markdown."""
        yield f"# {self.file.name.removeprefix(PACKAGE + '/')}"
        yield ""
        yield from self._comment((_FILE_SYNTAX,))
        for index, service in enumerate(self.file.service):
            yield from self._service(service, (_FILE_SERVICES, index))
        for index, message in enumerate(self.file.message_type):
            yield from self._message(message, (_FILE_MESSAGES, index))
        for index, enum in enumerate(self.file.enum_type):
            yield from self._enum(enum, (_FILE_ENUMS, index))

    def _comment(self, path: tuple[int, ...]) -> Iterator[str]:
        if path in self.comments:
            yield _escaped(self.comments[path])
            yield ""

    def _cell(self, path: tuple[int, ...]) -> str:
        return _escaped(self.comments.get(path, "")).replace("|", "\\|")

    def _service(self, service: ServiceDescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
        yield f"## Service {service.name}"
        yield ""
        yield from self._comment(path)
        for index, method in enumerate(service.method):
            yield f"### {service.name}.{method.name}"
            yield ""
            asked = ("stream of " if method.client_streaming else "") + _link(method.input_type)
            answer = ("stream of " if method.server_streaming else "") + _link(method.output_type)
            yield f"{asked} → {answer}"
            yield ""
            yield from self._comment((*path, _SERVICE_METHODS, index))

    def _message(self, message: DescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
        yield f"({_target(message.name)})="
        yield f"## {message.name}"
        yield ""
        yield from self._comment(path)
        if not message.field:
            yield "No fields."
            yield ""
            return
        yield "| field | type | |"
        yield "|---|---|---|"
        for index, field in enumerate(message.field):
            about = self._cell((*path, _MESSAGE_FIELDS, index))
            if field.HasField("oneof_index") and not field.proto3_optional:
                choice = message.oneof_decl[field.oneof_index].name
                about = f"*One of `{choice}`.* {about}"
            kind = _field_type(field, message)
            yield f"| `{field.name}` = {field.number} | {kind} | {about} |"
        yield ""

    def _enum(self, enum: EnumDescriptorProto, path: tuple[int, ...]) -> Iterator[str]:
        yield f"({_target(enum.name)})="
        yield f"## {enum.name}"
        yield ""
        yield from self._comment(path)
        yield "| value | |"
        yield "|---|---|"
        for index, value in enumerate(enum.value):
            about = self._cell((*path, _ENUM_VALUES, index))
            yield f"| `{value.name}` = {value.number} | {about} |"
        yield ""


def _field_type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    for nested in message.nested_type:
        if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
            key, value = (_field_type(each, nested) for each in nested.field)
            return f"map from {key} to {value}"
    label = ""
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        label = "repeated "
    elif field.proto3_optional:
        label = "optional "
    if field.type_name:
        return label + _link(field.type_name)
    return f"{label}`{type_name(field.type).removeprefix('TYPE_').lower()}`"


def _link(name: str) -> str:
    short = name.rpartition(".")[2]
    return f"[{short}](#{_target(short)})" if name.startswith(".quire.v1.") else f"`{name[1:]}`"


def _target(name: str) -> str:
    """Return a label that no Python class of the same name has."""
    return f"proto-{name}"


def _escaped(comment: str) -> str:
    """Keep what is prose in a comment from being read as Markdown or HTML; code stays as it is."""
    parts = comment.split("`")
    for index in range(0, len(parts), 2):
        parts[index] = "".join(f"\\{each}" if each in "*_<>[]" else each for each in parts[index])
    return "`".join(parts)


def write_reference(out: Path, protos: Path = PROTOS) -> list[Path]:
    """Write a page for each file of the package.

    Args:
        out: directory of the pages; made if it is not there.
        protos: root of the import paths.

    Returns:
        The pages.

    Raises:
        ValueError: protoc refuses a file.
    """
    out.mkdir(parents=True, exist_ok=True)
    pages = []
    for file in compile_protos(protos):
        page = out / f"{Path(file.name).stem}.md"
        page.write_text("\n".join(ProtoPage.of(file).lines()))
        pages.append(page)
    return pages


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="directory to write the pages to")
    for written in write_reference(parser.parse_args().out):
        print(written)
