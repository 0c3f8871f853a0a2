"""Two hosts on one machine: network namespaces with nothing but a cable between them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PREFIX = "10.213.77"


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with one address, besides its loopback.

    Attributes:
        name: of the namespace.
        address: at the cable.
        interface: the cable's end.
    """

    name: str
    address: str
    interface: str

    def command(self, *arguments: str) -> list[str]:
        """Return a command line that runs here."""
        return ["ip", "netns", "exec", self.name, *arguments]

    def set_link(self, state: str) -> None:
        """Plug the cable in ("up") or pull it out ("down")."""
        _ip("-n", self.name, "link", "set", self.interface, state)

    def listening_addresses(self) -> set[str]:
        """Return the addresses, in hexadecimal, that any process here accepts connections at."""
        found = set()
        for table in ("tcp", "tcp6"):
            lines = _run(*self.command("cat", f"/proc/net/{table}")).stdout.splitlines()[1:]
            fields = [line.split() for line in lines]
            found |= {each[1].partition(":")[0] for each in fields if each[3] == "0A"}
        return found

    def address_in_hexadecimal(self) -> set[str]:
        """Return this host's address as the kernel's tables write it, as IPv4 and in IPv6."""
        number = "".join(f"{int(part):02X}" for part in reversed(self.address.split(".")))
        return {number, f"0000000000000000FFFF0000{number}"}


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _ip(*arguments: str) -> None:
    done = _run("ip", *arguments)
    assert done.returncode == 0, done.stderr


def why_not() -> str | None:
    """Return why namespaces cannot be made here, or None if they can."""
    if shutil.which("ip") is None:
        return "network namespaces: the command ip is missing (apt-get install iproute2)"
    probe = f"quire-probe-{os.getpid()}"
    made = _run("ip", "netns", "add", probe)
    if made.returncode != 0:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    _ip("netns", "del", probe)
    return None


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make two hosts and remove them, with whatever still runs there."""
    hosts = [
        Host(f"quire-{end}-{os.getpid()}", f"{PREFIX}.{number}", f"cable{end}")
        for number, end in enumerate("ab", start=1)
    ]
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
        first, second = hosts
        _ip(
            *["link", "add", first.interface, "netns", first.name, "type", "veth"],
            *["peer", "name", second.interface, "netns", second.name],
        )
        for host in hosts:
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            _ip("-n", host.name, "link", "set", "lo", "up")
            host.set_link("up")
        yield first, second
    finally:
        for host in hosts:
            _run("kill", "-9", *_run("ip", "netns", "pids", host.name).stdout.split())
            _run("ip", "netns", "del", host.name)
