"""Captures of graphs while a worker serves, for which there may be no memory left."""

from collections.abc import Callable
from typing import Any

from quire.observe.log import get_logger
from worker_svc.device.cuda import CudaDevice, Graph

log = get_logger()


class LateCaptures:
    """Captures steps that were computed before, or leaves them to be started kernel by kernel.

    Args:
        device: the GPU that runs the graphs.
        pool: of the device, for what they compute on the way.
        num_ranks: of the model. Other ranks would replay exchanges that a rank without the graph
            starts kernel by kernel: of several, one whose capture fails must fail its step, so that
            their group forms anew.
    """

    def __init__(self, device: CudaDevice, pool: Any, num_ranks: int) -> None:
        self._device = device
        self._pool = pool
        self._num_ranks = num_ranks
        self._has_failed = False

    def capture(self, work: Callable[[], None], num_rows: int) -> Graph | None:
        """Return the graph of some work of so many rows, or None if there can be none.

        Raises:
            RuntimeError: it cannot be captured on one of several ranks.
        """
        try:
            return self._device.capture(work, self._pool)
        except RuntimeError as error:
            if self._num_ranks > 1:
                raise
            if not self._has_failed:
                log.warning("graph_not_captured", rows=num_rows, reason=str(error))
            self._has_failed = True
            return None
