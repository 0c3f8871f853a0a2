"""Models of Hugging Face's hub: the files that Quire reads, each checked, in a directory.

Only `quire pull` uses it. A download that was interrupted goes on where it ended, also in another
process: what has come of a file waits in the directory under the hash of the whole.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from launch.model_names import TEXTS, WEIGHTS
from quire.contract.errors import ConfigError
from quire.version import __version__

PARTS = ".quire-pull"
_ONLY_FOLDER = "additional_chat_templates"
_READ_BYTES = 2**20
_GIB = 2**30
Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository.

    Attributes:
        path: in the repository.
        size: bytes.
        sha256: in hexadecimal, of a large file; None for those that git holds itself.
        git_id: what git calls its contents.
    """

    path: str
    size: int
    sha256: str | None
    git_id: str

    @property
    def key(self) -> str:
        """A name for its contents."""
        return self.sha256 or self.git_id


@dataclass(frozen=True, slots=True)
class Listing:
    """What is to be pulled.

    Attributes:
        name: of the model.
        commit: that its revision means now, in hexadecimal.
        files: that Quire reads.
    """

    name: str
    commit: str
    files: tuple[HubFile, ...]


def list_files(name: str, revision: str | None = None, gguf: str | None = None) -> Listing:
    """Ask the hub what to pull.

    Args:
        name: OWNER/NAME.
        revision: branch, tag or commit; None for the main branch.
        gguf: pattern of a GGUF file to take instead of safetensors.

    Raises:
        ConfigError: the hub has no such model or revision, gives no access, or cannot be reached;
            or the model has no weights that Quire reads.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.hf_api import RepoFile

    api = HfApi(
        endpoint=constants.ENDPOINT, library_name="quire-serve", library_version=__version__
    )
    with _explained(name, revision):
        commit = api.model_info(name, revision=revision or "main", timeout=30).sha
        tree = [
            HubFile(each.path, each.size, each.lfs.sha256 if each.lfs else None, each.blob_id)
            for each in api.list_repo_tree(name, recursive=True, revision=commit)
            if isinstance(each, RepoFile)
        ]
    wanted = TEXTS + ((gguf,) if gguf else WEIGHTS)
    files = tuple(each for each in tree if _is_wanted(each.path, wanted))
    _check_weights(name, files, tree, gguf)
    return Listing(name, commit or "", files)


def _is_wanted(path: str, patterns: tuple[str, ...]) -> bool:
    # A star of fnmatch takes slashes, too: parts are checked first, `..` among them.
    match PurePosixPath(path).parts:
        case (name,) if name != "..":
            return any(fnmatch(path, each) for each in patterns)
        case (folder, name) if folder == _ONLY_FOLDER and name != "..":
            return any(fnmatch(path, each) for each in patterns)
    return False


def _check_weights(
    name: str, files: tuple[HubFile, ...], tree: list[HubFile], gguf: str | None
) -> None:
    others = sorted(each.path for each in tree if each.path.endswith(".gguf"))
    shown = ", ".join(others[:12]) + (", ..." if len(others) > 12 else "")
    if gguf is not None:
        found = [each for each in files if each.path.endswith(".gguf")]
        if len(found) != 1:
            raise ConfigError(
                f"gguf: must match one file of {name}, got {len(found)} of {shown or 'none'}"
            )
    elif not any(each.path.endswith(".safetensors") for each in files):
        if others:
            raise ConfigError(f"gguf: must be given, one of those of {name}: {shown}")
        raise ConfigError(
            f"model: must have weights in safetensors, got {name} without; another revision may "
            "have them (the hub's converter offers refs/pr/N): NAME@REVISION"
        )


def pull(listing: Listing, directory: Path, advance: Advance = lambda _: None) -> None:
    """Bring files to a directory, each of which is whole and right once it has its name.

    Args:
        listing: what to bring; files that are there already are checked and kept.
        directory: made if need be.
        advance: called with bytes that are there, and less than 0 where they have to come again.

    Raises:
        ConfigError: as `list_files`; the disk is full; what came has another hash.
    """
    parts = directory / PARTS
    with _explained(listing.name, listing.commit):
        parts.mkdir(parents=True, exist_ok=True)
        missing = []
        for each in listing.files:
            if _is_there(directory / each.path, each):
                advance(each.size)
            else:
                missing.append(each)
        _check_room(parts, missing)
        for each in missing:
            _bring(listing, each, parts / f"{each.key}.incomplete", advance)
            target = directory / each.path
            target.parent.mkdir(exist_ok=True)
            (parts / f"{each.key}.incomplete").replace(target)
        if not any(parts.iterdir()):
            parts.rmdir()


def _is_there(path: Path, file: HubFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and _has_hash(path, file)


def _has_hash(path: Path, file: HubFile) -> bool:
    if file.sha256 is not None:
        digest, expected = hashlib.sha256(), file.sha256
    else:
        digest, expected = hashlib.sha1(usedforsecurity=False), file.git_id
        digest.update(b"blob %d\0" % file.size)
    with path.open("rb") as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest() == expected


def _check_room(parts: Path, missing: list[HubFile]) -> None:
    there = sum(each.stat().st_size for each in parts.iterdir())
    needed, free = sum(each.size for each in missing) - there, shutil.disk_usage(parts).free
    if needed > free:
        raise ConfigError(
            f"directory: must have {needed / _GIB:.1f} GiB free, got {free / _GIB:.1f} GiB at "
            f"{parts.parent}"
        )


def _bring(listing: Listing, file: HubFile, part: Path, advance: Advance) -> None:
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers

    class Bar:
        """What http_get reports to."""

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, num_bytes: int) -> None:
            advance(num_bytes)

    with part.open("ab") as stream:
        if stream.tell() > file.size:
            stream.truncate(0)
            stream.seek(0)
        resumed = stream.tell()
        advance(resumed)
        if resumed < file.size:
            http_get(
                hf_hub_url(
                    listing.name, file.path, revision=listing.commit, endpoint=constants.ENDPOINT
                ),
                stream,
                resume_size=resumed,
                headers=build_hf_headers(library_name="quire-serve", library_version=__version__),
                expected_size=file.size,
                tqdm_class=Bar,
            )
        stream.flush()
        os.fsync(stream.fileno())
    if not _has_hash(part, file):
        part.unlink()
        raise ConfigError(
            f"{file.path}: must have the hash {file.key}, got another: what came was dropped; "
            "pull again"
        )


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return what the library's own client raises: it has changed clients, and may again."""
    from huggingface_hub import errors

    # The first class below its own that is no OSError: the client's.
    return tuple(each for each in errors.HfHubHTTPError.__bases__ if each is not OSError)


@contextmanager
def _explained(name: str, revision: str | None) -> Iterator[None]:
    """Say in one line what the hub's errors and the disk's mean."""
    from huggingface_hub import constants, errors

    hub, unreachable = constants.ENDPOINT, _transport_errors()
    try:
        yield
    except errors.HFValidationError:
        raise ConfigError(f"model: must be OWNER/NAME, got {name}") from None
    except errors.GatedRepoError:
        raise ConfigError(
            f"model: {name} is given on request: ask at {hub}/{name}, then set HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"model: must be at {hub}, got {name}; a private one needs HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"revision: must be one of {name}, got {revision}") from None
    except errors.OfflineModeIsEnabled:
        raise ConfigError("HF_HUB_OFFLINE: must be unset to pull, got 1") from None
    except unreachable as error:
        line = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"{hub}: cannot be reached, or failed: {line or type(error).__name__}; "
            "the same command goes on where this ended"
        ) from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ConfigError(
                "directory: the disk is full; the same command goes on where this ended"
            ) from None
        # Also what the library raises of a size that is not the expected one.
        raise ConfigError(f"{name}: {str(error).partition(chr(10))[0]}") from None
