"""The corpus of the demo model, English text that ships with Python itself, and its tokenizer.

Everything kept here is covered by the licence of Python (PSF-2.0), which permits derived works
that carry its notice. Four sources, in sorted order, so that one interpreter gives one corpus:

* the topics of ``help()`` (the language reference), cut into sections;
* docstrings of the standard library's Python modules;
* docstrings of its C modules;
* long comment blocks of its Python modules, and the licence itself.
"""

import ast
import importlib
import inspect
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 4096

# Test suites, bundled wheels, and packages that are programs rather than documented modules.
SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests"}
)
# C modules with a licence of their own (sqlite3: zlib; curses, lsprof, audioop: permissive with
# their own notice; sre: CNRI; elementtree: Secret Labs), or that exist only for tests.
SKIPPED_C_MODULES = re.compile(
    r"_?xx|_test|_ctypes_test|_sqlite3|_curses|_lsprof|audioop|_sre|_elementtree|_random"
)
# A file that carries terms other than Python's is left out whole.
OWN_LICENCE = re.compile(
    r"permission to use|permission is (hereby )?granted|redistribution and use"
    r"|licen[sc]ed under the (mit|apache)|\bGPLv?\d|CNRI|usage and redistribution"
    r"|same terms as Python|secret labs",
    re.IGNORECASE,
)
COPYRIGHT = re.compile(
    r"^.*(?:copyright\s*(?:\(c\)|©|\d{4})|\(c\)\s*\d{4}).*$", re.IGNORECASE | re.MULTILINE
)
UNDERLINE = re.compile(r"^([*=~^-])\1{2,}$")
MIN_CHARS = 24
MIN_COMMENT_CHARS = 200
# Prompts are typed in ASCII; the topics are set with typographic quotes.
TO_ASCII = str.maketrans(
    {
        "\N{LEFT SINGLE QUOTATION MARK}": "'",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{LEFT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
        "\N{HORIZONTAL ELLIPSIS}": "...",
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
    }
)

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Corpus:
    """Distinct documents, already shuffled; the held-out ones are never trained on."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    excluded_files: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        """Size of all documents in UTF-8 bytes."""
        return sum(len(text.encode()) for text in self.train + self.held_out)


def is_python_licensed(source: str) -> bool:
    """Tell whether a source file is under Python's licence and no other."""
    if OWN_LICENCE.search(source):
        return False
    if "Licensed to PSF under a Contributor Agreement" in source:
        return True
    return all("Python Software Foundation" in line for line in COPYRIGHT.findall(source))


def topic_sections() -> Iterator[str]:
    """Yield the sections of the ``help()`` topics, each starting with its heading."""
    for _, text in sorted(topics.items()):
        lines = text.splitlines()
        starts = [i - 1 for i, line in enumerate(lines) if i and UNDERLINE.match(line)]
        heading = ""
        for begin, end in zip([0, *starts], [*starts, len(lines)], strict=True):
            section = heading + "\n".join(lines[begin:end]).strip()
            if section.count("\n") <= 1:  # a heading alone belongs to its first subsection
                heading = f"{section}\n\n" if section else ""
            else:
                heading = ""
                yield section


def docstrings_of(tree: ast.Module) -> Iterator[str]:
    """Yield each docstring of a module under a line that names its object, as pydoc shows it."""
    pending: list[tuple[str, Documented]] = [("", tree)]
    while pending:
        owner, node = pending.pop()
        header = ""
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(ast.unparse(base) for base in node.bases)
            header = f"class {owner}{node.name}" + (f"({bases})" if bases else "")
            owner = f"{node.name}."
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            header = f"{owner}{node.name}({ast.unparse(node.args)})"
        doc = ast.get_docstring(node, clean=True)
        if doc:
            yield f"{header}\n\n{doc}" if header else doc
        children = [c for c in node.body if isinstance(c, Documented)]
        pending.extend((owner, child) for child in reversed(children))


def comment_blocks(source: str) -> Iterator[str]:
    """Yield runs of comment lines that are long enough and read as prose."""
    for block in re.findall(r"(?:^[ \t]*# .*\n|^[ \t]*#\n){3,}", source, re.M):
        lines = [line.strip().removeprefix("#").removeprefix(" ") for line in block.splitlines()]
        text = "\n".join(lines).strip()
        prose = sum(c.isalpha() or c in " \n" for c in text)
        if len(text) >= MIN_COMMENT_CHARS and text[0].isalpha() and prose > 0.9 * len(text):
            yield text


def c_docstrings(module_name: str) -> Iterator[str]:
    """Yield the docstrings of a module written in C: its own, its functions' and its classes'."""
    try:
        module = importlib.import_module(module_name)
    except ImportError:  # this build of Python lacks the library that it needs
        return
    yield inspect.cleandoc(module.__doc__ or "")
    for name, member in sorted(vars(module).items()):
        if inspect.isclass(member):
            yield documented(f"class {name}", member)
            for attribute, value in sorted(vars(member).items()):
                if inspect.isroutine(value):
                    yield documented(f"{name}.{attribute}{signature_of(value)}", value)
        elif inspect.isbuiltin(member):
            header = f"{module_name}.{name}".removeprefix("builtins.") + signature_of(member)
            yield documented(header, member)


def signature_of(routine: object) -> str:
    """Return the parameters of a routine written in C as pydoc shows them."""
    return (getattr(routine, "__text_signature__", None) or "(...)").replace("$", "")


def documented(header: str, member: object) -> str:
    """Return a header, a blank line and the member's docstring, or nothing without one."""
    doc = member.__doc__  # a descriptor, not a string, on a class with a property of that name
    return f"{header}\n\n{inspect.cleandoc(doc)}" if isinstance(doc, str) else ""


def build_corpus(held_out_share: float = 0.02, seed: int = 0) -> Corpus:
    """Collect, clean, deduplicate and shuffle the documents.

    Args:
        held_out_share: fraction of the documents that training must not see.
        seed: of the shuffle; the same seed and interpreter give the same corpus.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found = [*topic_sections(), (root / "LICENSE.txt").read_text(encoding="utf-8")]
    excluded: list[str] = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS.intersection(relative.parts) or relative.parts[0] == "pydoc_data":
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        if not is_python_licensed(source):
            excluded.append(relative.as_posix())
            continue
        found.extend(docstrings_of(ast.parse(source)))
        found.extend(comment_blocks(source))
    extensions = {path.name.partition(".")[0] for path in (root / "lib-dynload").glob("*.so")}
    for name in sorted(extensions.union(sys.builtin_module_names)):
        if not SKIPPED_C_MODULES.match(name):
            found.extend(c_docstrings(name))

    documents: dict[str, str] = {}
    for text in found:
        clean = text.translate(TO_ASCII).expandtabs().strip()
        body = clean.partition("\n\n")[2] or clean  # one inherited docstring is kept once
        if len(body) >= MIN_CHARS:
            documents.setdefault(body, clean)
    shuffled = list(documents.values())
    random.Random(seed).shuffle(shuffled)
    n_held_out = round(len(shuffled) * held_out_share)
    return Corpus(tuple(shuffled[n_held_out:]), tuple(shuffled[:n_held_out]), tuple(excluded))


def train_tokenizer(corpus: Corpus, max_length: int) -> PreTrainedTokenizerFast:
    """Fit a byte-level BPE; every text round-trips, since all 256 bytes are entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.train, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: tuple[str, ...]) -> list[list[int]]:
    """Return the tokens of each document, each with the end-of-text token after it."""
    return [[*ids, tokenizer.eos_token_id] for ids in tokenizer(list(texts))["input_ids"]]


if __name__ == "__main__":
    corpus = build_corpus()
    print(f"{len(corpus.train)} + {len(corpus.held_out)} documents, {corpus.n_bytes} bytes")
    print("left out for their own licence:", ", ".join(corpus.excluded_files))
