"""Writes worker_svc/_C.pyi, the types of the compiled module: python csrc/bindings/stub.py FILE.

The operations come from csrc/ops.def, the rest from _C.pyi.in. Only the standard library is needed,
so that the types can be had without a compiler.
"""

import re
import sys
from pathlib import Path

BINDINGS = Path(__file__).resolve().parent

# Argument types of ops.def, as Python sees them.
PYTHON_TYPES = {
    "const Tensor&": "Tensor",
    "const std::optional<Tensor>&": "Tensor | None",
    "const std::vector<Tensor>&": "Sequence[Tensor]",
    "const AttentionPlan*": "AttentionPlan | None",
    "double": "float",
    "std::optional<double>": "float | None",
    "int64_t": "int",
    "std::optional<int64_t>": "int | None",
    "bool": "bool",
}


def argument(text: str) -> str:
    """Return `name: type` for an argument of C++.

    Raises:
        ValueError: The type is not in PYTHON_TYPES.
    """
    cpp_type, _, name = " ".join(text.split()).rpartition(" ")
    if cpp_type not in PYTHON_TYPES:
        raise ValueError(
            f"ops.def: type of {name}: must be one of {', '.join(PYTHON_TYPES)}, got {cpp_type!r}"
        )
    return f"{name}: {PYTHON_TYPES[cpp_type]}"


def stub() -> str:
    """Return the text of the stub."""
    listed = re.sub(r"//.*", "", (BINDINGS.parent / "ops.def").read_text())
    functions = []
    for match in re.finditer(r"^QUIRE_(?:ISA_)?OP\(([^()]*)\)", listed, re.MULTILINE):
        name, _, *arguments = match[1].split(",")
        lines = "".join(f"    {argument(each)},\n" for each in arguments)
        functions.append(f"def {name}(\n{lines}    /,\n) -> None: ...")
    template = (BINDINGS / "_C.pyi.in").read_text()
    return template.replace("@OPERATIONS@", "\n".join(functions))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(stub())
