"""The documentation builds, and a dead link ends the build."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.api_reference import write_reference

ROOT = Path(__file__).resolve().parents[2]


def build(source: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(ROOT / "docs")]
    return subprocess.run(
        [*command, *options, str(source), str(out)], capture_output=True, text=True, check=False
    )


def test_every_page_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path)

    assert built.returncode == 0, built.stderr
    reference = (tmp_path / "docs/reference/generated/api/inference.html").read_text()
    assert "InferenceService.Generate" in reference
    assert "operations.html" in (tmp_path / "docs/index.html").read_text()


@pytest.mark.parametrize(
    "link",
    [
        "nowhere.md",
        *(
            pytest.param(link, marks=pytest.mark.deep)
            for link in ("../protos/nothing.proto", "page.md#no-heading")
        ),
    ],
)
def test_a_dead_link_ends_the_build(link: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"# Page\n\n[dead]({link}) and [alive](page.md#page)\n")

    only_page = ("-D", "root_doc=page", "-D", "include_patterns=page.md")
    built = build(tmp_path, tmp_path / "out", *only_page)

    assert built.returncode != 0
    assert (link.partition("#")[2] or link) in built.stderr


def test_the_reference_has_every_comment_and_type(tmp_path: Path) -> None:
    protos = tmp_path / "protos"
    (protos / "quire/v1").mkdir(parents=True)
    (protos / "quire/v1/small.proto").write_text(
        """
        // A small file.
        syntax = "proto3";
        package quire.v1;
        // Does things.
        service Doer {
          // Does one_thing.
          rpc Do(stream Task) returns (Task);
        }
        message Task {
          // Bounded by [0, 1].
          optional float share = 1;
          map<uint32, float> bias = 2;  // Behind its field.
          oneof what {
            Task inner = 3;
            repeated_kind kind = 4;
          }
        }
        enum repeated_kind {
          ZERO = 0;
        }
        """
    )

    (page,) = write_reference(tmp_path / "out", protos)

    text = page.read_text()
    for expected in (
        "A small file.",
        "Does things.",
        "### Doer.Do",
        "stream of [Task](#proto-Task) → [Task](#proto-Task)",
        r"Does one\_thing.",
        r"| `share` = 1 | optional `float` | Bounded by \[0, 1\]. |",
        "| `bias` = 2 | map from `uint32` to `float` | Behind its field. |",
        "| `inner` = 3 | [Task](#proto-Task) | *One of `what`.*",
        "| `ZERO` = 0 |",
    ):
        assert expected in text


def test_a_file_that_protoc_refuses_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "quire/v1").mkdir(parents=True)
    (tmp_path / "quire/v1/bad.proto").write_text("not a proto")

    with pytest.raises(ValueError, match="protoc"):
        write_reference(tmp_path / "out", tmp_path)
