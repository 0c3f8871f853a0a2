"""The file of API keys, the store that follows it, and the command that edits it."""

import asyncio
import json
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from launch.cli.main import app
from quire.contract.callers import MAX_KEY_LENGTH, Caller
from quire.contract.errors import ConfigError
from quire.contract.quotas import UNLIMITED, Quotas
from quire.security.api_key_file import (
    MAX_FILE_BYTES,
    MAX_KEYS,
    MAX_LINE_BYTES,
    ApiKey,
    digest,
    editing,
    parse_keys,
    read_keys,
)
from quire.security.api_keys import RELOAD_INTERVAL_S, ApiKeys, generate_key

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
FILE = Path("keys.jsonl")


def line(**changes: object) -> str:
    fields: dict[str, object] = {
        "name": "alice",
        "sha256": digest("a key").hex(),
        "created": "2030-01-31T12:00:00Z",
        **changes,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def found(keys: ApiKeys, key: str) -> str | None:
    caller = keys.find(key)
    return None if caller is None else caller.name


def write(path: Path, *keys: ApiKey) -> None:
    with editing(path) as there:
        there[:] = keys


def test_generated_keys_are_distinct_and_hold_256_bits() -> None:
    keys = {generate_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        assert key.startswith("quire-")
        assert len(key) == len("quire-") + 43  # 43 x 6 bits >= 256
        assert len(key) <= MAX_KEY_LENGTH


def test_what_is_written_reads_the_same(tmp_path) -> None:
    keys = (
        ApiKey("alice", digest("a"), NOON),
        ApiKey("bob-2.x_y", digest("b"), NOON, NOON + timedelta(days=1)),
        ApiKey("carol", digest("c"), NOON, weight=2.5, min_priority=-1),
        ApiKey("dave", digest("d"), NOON, quotas=Quotas(60, None, 3)),
        ApiKey("e" * 63, digest("e"), NOON, NOON, 1 / 3e5, -100, Quotas(*[2**32 - 1] * 3)),
    )
    path = tmp_path / "keys.jsonl"
    write(path, *keys)
    assert read_keys(path) == keys
    assert b'"a"' not in path.read_bytes()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("quire-secret", "line 1: is not a JSON object"),
        ("[" * 500, "line 1: is not a JSON object"),
        ('["quire-secret"]', "line 1: is not a JSON object of texts"),
        (line(expires=5), "line 1: is not a JSON object of texts"),
        (line(key="quire-secret"), "line 1: has fields other than"),
        (line(name=None), "line 1: name is missing"),
        (line(sha256=None), "line 1: sha256 is missing"),
        (line(created=None), "line 1: created is missing"),
        (line(name="quire-secret/"), "line 1: name: 1 to 63"),
        (line(name=""), "line 1: name: 1 to 63"),
        (line(name="a" * 64), "line 1: name: 1 to 63"),
        (line(name="alice\n"), "line 1: name: 1 to 63"),
        (line(sha256="quire-secret"), "line 1: sha256 must be"),
        (line(sha256=digest("a").hex().upper()), "line 1: sha256 must be"),
        (line(created="yesterday"), "line 1: created must be a time with its zone"),
        (line(expires="2030-01-31T12:00:00"), "line 1: expires must be a time with its zone"),
        (line(weight="secret"), "line 1: weight must be a number"),
        (line(weight="nan"), "line 1: weight: must be in [1e-06, 1e+06], got nan"),
        (line(weight="0"), "line 1: weight: must be in [1e-06, 1e+06], got 0"),
        (line(weight=3), "line 1: is not a JSON object of texts"),
        (line(min_priority="1.5"), "line 1: min_priority must be a number"),
        (line(min_priority="-101"), "line 1: min_priority: must be in [-100, 100], got -101"),
        (line(max_concurrent="many"), "line 1: max_concurrent must be a number"),
        (line(max_concurrent="0"), "line 1: max_concurrent: must be in [1, 4294967295], got 0"),
        (line(max_tokens_per_minute=9), "line 1: is not a JSON object of texts"),
        (line(name="a" * MAX_LINE_BYTES), "line 1: must be at most"),
        ("\n" + line() + "\n" + line(sha256=digest("b").hex()), "line 3: its name or sha256"),
        (line() + "\n" + line(name="bob"), "line 2: its name or sha256"),
    ],
)
def test_a_malformed_file_is_refused_by_line_and_not_quoted(text, complaint) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_keys(text.encode(), FILE)
    assert complaint in caught.value.message
    assert str(FILE) in caught.value.message
    assert "secret" not in caught.value.message


def test_a_file_from_before_there_were_quotas_has_none() -> None:
    (key,) = parse_keys(line(weight="2.5", min_priority="-1").encode(), FILE)
    assert (key.weight, key.quotas) == (2.5, UNLIMITED)
    assert key.caller.quotas == UNLIMITED


def test_more_keys_than_the_limit_are_refused() -> None:
    def content(count: int) -> bytes:
        lines = (line(name=f"n{i}", sha256=digest(str(i)).hex()) for i in range(count))
        return "\n".join(lines).encode()

    assert len(parse_keys(content(MAX_KEYS), FILE)) == MAX_KEYS
    with pytest.raises(ConfigError, match=f"at most {MAX_KEYS} keys"):
        parse_keys(content(MAX_KEYS + 1), FILE)


def test_a_file_of_any_size_is_read_up_to_the_limit_only(tmp_path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_bytes(b"\n" * MAX_FILE_BYTES)
    assert read_keys(path) == ()
    path.write_bytes(b"\n" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="bytes"):
        read_keys(path)
    with pytest.raises(ConfigError, match="bytes"):
        read_keys(Path("/dev/zero"))


@given(st.binary(max_size=600) | st.text(max_size=300).map(str.encode))
def test_whatever_a_file_holds_it_is_keys_or_one_error(content) -> None:
    try:
        keys = parse_keys(content, FILE)
    except ConfigError:
        return
    assert keys == () or content.strip()


def test_only_the_whole_key_is_found(tmp_path) -> None:
    path = tmp_path / "keys.jsonl"
    key, other = generate_key(), generate_key()
    write(path, ApiKey("alice", digest(key), NOON), ApiKey("bob", digest(other), NOON))
    keys = ApiKeys(path)
    assert found(keys, key) == "alice"
    assert found(keys, other) == "bob"
    for wrong in ("", key[:-1], key + " ", key.upper(), digest(key).hex(), "\udcff", "é" * 9):
        assert found(keys, wrong) is None


def test_a_key_longer_than_the_limit_is_not_even_hashed(tmp_path) -> None:
    path = tmp_path / "keys.jsonl"
    longest, longer = "k" * MAX_KEY_LENGTH, "k" * (MAX_KEY_LENGTH + 1)
    write(path, ApiKey("longest", digest(longest), NOON), ApiKey("longer", digest(longer), NOON))
    keys = ApiKeys(path)
    assert found(keys, longest) == "longest"
    assert found(keys, longer) is None


def test_a_key_ends_at_the_moment_it_expires(tmp_path) -> None:
    path = tmp_path / "keys.jsonl"
    write(path, ApiKey("alice", digest("a"), NOON, NOON + timedelta(seconds=10)))
    now = NOON
    keys = ApiKeys(path, clock=lambda: now)
    now = NOON + timedelta(seconds=9.999)
    assert found(keys, "a") == "alice"
    now = NOON + timedelta(seconds=10)
    assert found(keys, "a") is None


def test_every_entry_is_compared_whichever_one_it_is(tmp_path, monkeypatch) -> None:
    path = tmp_path / "keys.jsonl"
    write(path, *(ApiKey(name, digest(name), NOON) for name in ("a", "b", "c")))
    keys = ApiKeys(path)
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return one == other

    monkeypatch.setattr("quire.security.api_keys.hmac.compare_digest", compare)
    for key in ("a", "c", "none of them"):
        compared.clear()
        found(keys, key)
        assert compared == [digest("a"), digest("b"), digest("c")]


def test_a_changed_file_is_taken_and_a_broken_one_changes_nothing(tmp_path) -> None:
    path = tmp_path / "keys.jsonl"
    write(path, ApiKey("alice", digest("a"), NOON))
    keys = ApiKeys(path)
    for broken in (b"{", b"\xff\n"):
        path.write_bytes(broken)
        keys.reload()
        assert found(keys, "a") == "alice"
    path.unlink()
    keys.reload()
    assert found(keys, "a") == "alice"
    write(path, ApiKey("bob", digest("b"), NOON))
    keys.reload()
    assert (found(keys, "a"), found(keys, "b")) == (None, "bob")
    write(path)
    keys.reload()
    assert found(keys, "b") is None


def test_a_change_that_leaves_size_and_times_alone_is_taken(tmp_path) -> None:
    path = tmp_path / "keys.jsonl"
    write(path, ApiKey("alice", digest("a"), NOON))
    status = path.stat()
    keys = ApiKeys(path)
    path.write_bytes(path.read_bytes().replace(b"alice", b"karen"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    keys.reload()
    assert found(keys, "a") == "karen"


def test_a_directory_swapped_under_the_name_is_taken(tmp_path) -> None:
    """As Kubernetes updates what it mounts: FILE -> ..data/FILE, ..data -> a dated directory."""
    for version, name in (("v1", "alice"), ("v2", "bob")):
        (tmp_path / version).mkdir()
        write(tmp_path / version / "keys.jsonl", ApiKey(name, digest(name), NOON))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "keys.jsonl").symlink_to("..data/keys.jsonl")
    keys = ApiKeys(tmp_path / "keys.jsonl")
    assert found(keys, "alice") == "alice"
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").rename(tmp_path / "..data")
    keys.reload()
    assert (found(keys, "alice"), found(keys, "bob")) == (None, "bob")


async def test_a_revoked_key_is_unknown_within_a_second(tmp_path) -> None:
    path = tmp_path / "keys.jsonl"
    write(path, ApiKey("alice", digest("a"), NOON))
    keys = ApiKeys(path)
    assert RELOAD_INTERVAL_S <= 0.5
    following = asyncio.create_task(keys.follow())
    try:
        write(path)
        async with asyncio.timeout(10):
            while found(keys, "a") is not None:
                await asyncio.sleep(0.01)
    finally:
        following.cancel()


def test_a_file_that_cannot_be_read_is_no_store(tmp_path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        ApiKeys(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="directory"):
        ApiKeys(tmp_path)


def test_editors_at_the_same_time_lose_nothing(tmp_path) -> None:
    path = tmp_path / "keys.jsonl"

    def add(name: str) -> None:
        with editing(path) as keys:
            keys.append(ApiKey(name, digest(name), NOON))

    threads = [threading.Thread(target=add, args=(f"n{i}",)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.name for key in read_keys(path)} == {f"n{i}" for i in range(20)}


def test_an_edit_that_fails_leaves_the_file_and_nothing_beside_it(tmp_path) -> None:
    path = tmp_path / "keys.jsonl"
    write(path, ApiKey("alice", digest("a"), NOON))
    before = path.read_bytes()
    with pytest.raises(ConfigError), editing(path) as keys:
        keys.append(keys[0])
    with pytest.raises(RuntimeError), editing(path) as keys:
        keys.clear()
        raise RuntimeError
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="No such file"), editing(tmp_path / "none" / "file"):
        pass


def test_a_new_file_is_for_its_owner_and_an_old_one_keeps_its_readers(tmp_path) -> None:
    path, link = tmp_path / "keys.jsonl", tmp_path / "link"
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o666)
    link.symlink_to(path)
    write(link, ApiKey("alice", digest("a"), NOON))
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert len(read_keys(path)) == 1


def test_the_command_adds_lists_and_revokes(tmp_path) -> None:
    path = tmp_path / "keys.jsonl"
    run = CliRunner(env={"QUIRE_API_KEYS": str(path), "COLUMNS": "200"}).invoke

    added = run(app, ["keys", "add", "alice"])
    key = added.stdout.strip()
    assert added.exit_code == 0
    assert ApiKeys(path).find(key) == Caller("alice")
    assert key not in path.read_text()
    rights = ("--weight", "3", "--min-priority", "0")
    assert run(app, ["keys", "add", "bob", "--days", "0", *rights]).exit_code == 0
    assert read_keys(path)[1].caller == Caller("bob", 3.0, 0)
    refused = run(app, ["keys", "add", "eve", "--weight", "0"])
    assert (refused.exit_code, "weight: must be in" in refused.stderr) == (1, True)

    quotas = ("--max-requests-per-minute", "61", "--max-tokens-per-minute", "5007")
    assert run(app, ["keys", "add", "carl", *quotas, "--max-concurrent", "73"]).exit_code == 0
    assert read_keys(path)[2].caller.quotas == Quotas(61, 5007, 73)
    assert all(cell in run(app, ["keys", "list"]).stdout for cell in ("61", "5007", "73"))
    refused = run(app, ["keys", "add", "eve", "--max-concurrent", "0"])
    assert (refused.exit_code, "max_concurrent: must be in" in refused.stderr) == (1, True)
    assert run(app, ["keys", "revoke", "carl"]).exit_code == 0

    again = run(app, ["keys", "add", "alice"])
    assert again.exit_code == 1
    assert "has a key of the name alice" in again.stderr

    listed = run(app, ["keys", "list"]).stdout
    assert "alice" in listed
    assert "never" in listed
    assert "(expired)" in listed
    assert digest(key).hex() not in listed

    assert run(app, ["keys", "revoke", "alice"]).exit_code == 0
    assert [each.name for each in read_keys(path)] == ["bob"]
    assert run(app, ["keys", "revoke", "alice"]).exit_code == 1


@pytest.mark.parametrize("days", ["-1", "nan", "1e20"])
def test_a_key_for_no_possible_time_is_refused(days, tmp_path) -> None:
    path = tmp_path / "keys.jsonl"
    result = CliRunner().invoke(app, ["keys", "add", "a", "--days", days, "--file", str(path)])
    assert result.exit_code != 0
    assert not path.exists()
