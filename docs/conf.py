"""How `make docs` builds the documentation: everything written in Markdown, README included.

The source directory is the root of the repository, so that every link between its pages, and from
them to files of the source, is checked; a dead one ends the build.
"""

import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "docs" / "reference" / "generated"
sys.path.insert(0, str(ROOT))

project = "Quire"
project_copyright = "the Quire authors"
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
include_patterns = [
    "README.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**.md",
    "deploy/**.md",
]
exclude_patterns = ["build", ".*", "**/node_modules"]
nitpicky = False

html_theme = "furo"
html_title = "Quire"
html_copy_source = False
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
suppress_warnings: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
napoleon_use_ivar = True


def _write_generated(_: Sphinx) -> None:
    """Write the pages that come from protos and from the command line."""
    from tools.api_reference import write_reference

    write_reference(GENERATED / "api")
    command = [sys.executable, "-m", "typer", "launch.cli.main", "utils", "docs", "--name", "quire"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for escaped, plain in (("&#x27;", "'"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(escaped, plain)
    (GENERATED / "cli.md").write_text(text.replace("# `quire`\n", "# The command line\n", 1))


def setup(app: Sphinx) -> None:
    """Have the generated pages written before pages are read."""
    # Before Sphinx looks for sources, which it does when this event is over.
    app.connect("config-inited", lambda app, config: _write_generated(app))
