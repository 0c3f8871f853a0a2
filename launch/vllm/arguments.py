"""vLLM's options on a command line: which are given, and with what."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from launch.vllm.table import ABSENT, ALWAYS, LISTS, NO_EFFECT, ONE_WAY, SHORT, SWITCHES
from launch.vllm.values import from_json
from quire.contract.errors import ConfigError

NAMES = frozenset({*ABSENT, *ALWAYS, *NO_EFFECT, *ONE_WAY})
"""Of options that have no meaning here but the one of the table."""

# An option with a key of its JSON object. Others of one dash may have a value with a dot, attached.
_SHORT = "|".join(word for word in SHORT if not word.startswith("--"))
_KEY = re.compile(rf"(--[a-z][\w-]*|{_SHORT})\.([\w.-]+)(\+?)")
# Lists that several options of the same name make together.
_ADDED = ("api-key",)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise what argparse says in the grammar of all errors."""
        name, _, what = message.removeprefix("argument ").partition(": ")
        name = name.partition("/")[0]
        if what.startswith("expected "):
            what = "must have a value, got none"
        elif value := what.removeprefix("ignored explicit argument ").removeprefix(what):
            name = name.partition(", ")[0]
            what = f"must have no value, as a switch has none, got {value}"
        elif name == "ambiguous option":
            name, _, choices = what.partition(" could match ")
            what = f"must be one of {choices}, got {name}"
        raise ConfigError(f"{name}: {what}" if what else message)


def split(arguments: Sequence[str], translated: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return vLLM's options among arguments, by name, and the arguments that are left.

    Names may have underscores, `--name.key VALUE` is a key of a JSON object, and `--config FILE`
    stands for the options of a YAML file, which others go before.

    Args:
        arguments: of a command line.
        translated: names of options with a meaning here, beside those of the table.

    Raises:
        ConfigError: an option lacks its value, or the file cannot be read.
    """
    words, objects = _spelled(arguments)
    # What has keys of its own on the line may have others in one JSON text, whosever option it is.
    apart = [name for name in objects if not name.startswith("-")]
    given, left = _parser([*translated, *apart]).parse_known_args(words)
    values = vars(given)
    for name, keys in objects.items():
        whole = from_json(name, values.get(name, {}))
        if not isinstance(whole, dict):
            raise ConfigError(f"{name}: must be an object where it has keys, got {values[name]}")
        values[name] = json.dumps(_merged(whole, keys))
    if files := values.pop("config", None):
        if len(files) > 1:
            raise ConfigError(f"config: must be one file, got {' and '.join(files)}")
        if not files[0]:
            raise ConfigError("config: must not be empty, got ''")
        below, more = split(_of_file(Path(files[0])), translated)
        # What the line has takes the place of what the file has, also of an option that repeats.
        again = {*map(_name_of, left), *(f"--{name}" for name in values)}
        more = [word for word in more if _name_of(word) not in again]
        kept = {name: value for name, value in below.items() if f"--{name}" not in again}
        values, left = {**kept, **values}, [*more, *left]
    return values, left


def _name_of(word: str) -> str:
    """Return which option a word gives, in the spelling without --no-; a value names itself."""
    name = word.partition("=")[0]
    return f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else name


def _parser(translated: Sequence[str]) -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    short: dict[str, list[str]] = {}
    for word, name in SHORT.items():
        short.setdefault(name, []).append(word)
    for name in sorted({*NAMES, *translated, "config"}):
        flags = [f"--{name}", *short.get(name, ())]
        how: dict[str, Any] = {}
        if name in SWITCHES:
            how = {"action": argparse.BooleanOptionalAction}
        elif name in LISTS:
            how = {"nargs": "+"}
            if name in _ADDED:
                how["action"] = "extend"
        elif name == "config":
            how = {"action": "append"}
        elif name == "hf-token":
            how = {"nargs": "?", "const": "true"}
        parser.add_argument(*flags, dest=name, **how)
    return parser


def _spelled(arguments: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return arguments in one spelling, and the keys of objects that stand apart, by option."""
    words: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    left = iter(arguments)
    for word in left:
        if word == "--":
            return [*words, word, *left], objects
        name, equals, value = word.partition("=")
        if match := re.fullmatch(r"-O=?(\w+)", word):
            words += ["-O", match[1]]
        elif match := _KEY.fullmatch(name):
            option = match[1].replace("_", "-")
            option = SHORT.get(option, option.removeprefix("--"))
            keys = _value_of(value if equals else next(left, ""))
            if match[3]:  # another item of a list
                keys = keys if isinstance(keys, list) else [keys]
            for key in reversed(match[2].split(".")):
                keys = {key: keys}
            objects[option] = _merged(objects.get(option, {}), keys)
        elif name in SHORT and name.startswith("--"):
            words.append(f"--{SHORT[name]}{equals}{value}")
        elif word.startswith("--"):
            words.append(f"{name.replace('_', '-')}{equals}{value}")
        else:
            words.append(word)
    return words, objects


def _value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _merged(old: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in new.items():
        below = old.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            old[key] = _merged(below, value)
        elif isinstance(below, list) and isinstance(value, list):
            old[key] = below + value
        else:
            old[key] = value
    return old


def _of_file(path: Path) -> list[str]:
    """Return the options of a YAML file as arguments."""
    try:
        import yaml  # of transformers, which workers need
    except ImportError:
        raise ConfigError(
            "config: needs PyYAML, which is not installed: pip install 'quire-serve[all]'"
        ) from None

    try:
        options = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"config: must be a YAML file that can be read, got {path}: {error.strerror}"
        ) from None
    except (ValueError, yaml.YAMLError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(f"config: must be a YAML file of options, got {path}: {why}") from None
    if not isinstance(options, dict):
        raise ConfigError(f"config: must be a YAML file of options, got {path}, which has none")
    if "config" in options:
        raise ConfigError(f"config: must not name another file, got {path}, which does")
    try:
        return [word for key, value in options.items() for word in _words(str(key), value)]
    except (ValueError, RecursionError):
        raise ConfigError(
            f"config: must have no value within itself, got {path}, which has one"
        ) from None


def _words(key: str, value: Any) -> list[str]:
    """Return an option of a file as arguments.

    Raises:
        ConfigError: it is a list of words that begin as options do.
        RecursionError: the value is within itself.
        ValueError: the same.
    """
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list) and name in LISTS and name not in _ADDED:
        for each in value:
            if str(each).startswith("-"):
                raise ConfigError(f"{key}: must not begin with -, got {each}")
        return [f"--{name}", *map(str, value)]
    if isinstance(value, list) and not any(isinstance(each, dict | list) for each in value):
        return [f"--{name}={each}" for each in value]
    if value is None:
        return []
    text = value if isinstance(value, str) else json.dumps(value, default=str).strip('"')
    return [f"--{name}={text}"]
