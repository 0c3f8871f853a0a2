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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        name, _, what = message.removeprefix("argument ").partition(": ")
        raise ConfigError(f"{name.partition('/')[0]}: {what}" if what else message)


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
    parser = _parser(translated)
    given, left = parser.parse_known_args(words)
    values = vars(given)
    for name, keys in objects.items():
        whole = from_json(name, values.get(name, {}))
        if not isinstance(whole, dict):
            raise ConfigError(f"{name}: must be an object where it has keys, got {values[name]}")
        values[name] = json.dumps(_merged(whole, keys))
    if file := values.pop("config", None):
        below, more = split(_of_file(Path(file)), translated)
        # Of what comes twice, the last counts.
        values, left = {**below, **values}, [*more, *left]
    return values, left


def _parser(translated: Sequence[str]) -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    short: dict[str, list[str]] = {}
    for word, name in SHORT.items():
        short.setdefault(name, []).append(word)
    for name in sorted({*ABSENT, *ALWAYS, *NO_EFFECT, *ONE_WAY, *translated, "config"}):
        flags = [f"--{name}", *short.get(name, ())]
        how: dict[str, Any] = {}
        if name in SWITCHES:
            how = {"action": argparse.BooleanOptionalAction}
        elif name in LISTS:
            how = {"nargs": "+"}
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
        elif match := re.fullmatch(r"(--[a-z][\w-]*|-[a-z]+)\.([\w.-]+)(\+?)", name):
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
    words: list[str] = []
    for key, value in options.items():
        name = str(key).replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list) and name in LISTS:
            words += [f"--{name}", *map(str, value)]
        elif isinstance(value, list) and not any(isinstance(each, dict | list) for each in value):
            words += [f"--{name}={each}" for each in value]
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, default=str).strip('"')
            words.append(f"--{name}={text}")
    return words
