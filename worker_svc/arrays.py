"""Types of arrays that the rooms of the worker share."""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
