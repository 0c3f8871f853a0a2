"""How the ranks of a group may be linked: in the clear on one machine, over TLS between machines.

NCCL has no encryption: what GPUs exchange needs a network that encrypts, or that nothing else is
on.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quire.contract.addresses import is_loopback
from quire.contract.errors import ConfigError
from quire.observe.log import get_logger
from worker_svc.parallel.gloo_tls import gloo_tls_fault

if TYPE_CHECKING:
    from quire.security.tls import TlsFiles

log = get_logger()


@dataclass(frozen=True, slots=True)
class LinkSecurity:
    """What this worker may use towards other ranks.

    Attributes:
        tls: certificate of this worker; None if it has none.
        insecure: whether tensors may go to other machines in the clear.
    """

    tls: "TlsFiles | None" = None
    insecure: bool = False

    def gloo_directory(self, host: str) -> Path | None:
        """Return the directory of the certificate for Gloo's TLS; None to speak in the clear.

        Args:
            host: address of this worker, as the other ranks reach it.

        Raises:
            ConfigError: they are on other machines, and Gloo can neither encrypt nor may it speak
                in the clear.
        """
        if is_loopback(host):
            return None
        fault = "there is no --tls-dir" if self.tls is None else gloo_tls_fault()
        if fault is None and self.tls is not None:
            self.tls.current()  # a warning in the log, if the files are not what they should be
            return self.tls.directory
        if self.insecure:
            log.warning("ranks_speak_in_the_clear", host=host, library="gloo", cause=fault)
            return None
        raise ConfigError(
            f"host: must be a loopback address for ranks whose tensors Gloo cannot encrypt, got "
            f"{host}, and {fault}; keep the ranks on one machine, or give each worker --insecure "
            "on a network that encrypts, or that nothing else is on"
        )

    def warn_of_nccl(self, host: str) -> None:
        """Log that NCCL sends tensors in the clear, where they may leave this machine."""
        if not is_loopback(host):
            log.warning(
                "ranks_speak_in_the_clear", host=host, library="nccl", cause="NCCL has no TLS"
            )
