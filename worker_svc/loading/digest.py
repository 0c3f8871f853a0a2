"""A digest of a model directory, which shows that ranks were given different models."""

import os
from hashlib import sha256
from pathlib import Path

NUM_SAMPLES = 64
SAMPLE_BYTES = 4096


def digest_checkpoint(directory: Path, *, reads_weights: bool) -> bytes:
    """Return a digest of a model's configuration and, in samples, of its weights.

    Each rank reads only its slice, so reading all weights would take too long. The digest covers
    the size of every file and evenly spaced samples, the first and the last bytes among them: thus
    names, shapes and types of the tensors. Weights that were trained further have another digest.

    Args:
        directory: directory of the model.
        reads_weights: whether it has weights; dummy weights have no file.
    """
    digest = sha256()
    names = ["config.json", "generation_config.json"]
    if reads_weights:
        names += sorted(path.name for path in directory.glob("*.safetensors"))
    for name in names:
        path = directory / name
        if not path.is_file():
            continue
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            last = max(0, path.stat().st_size - SAMPLE_BYTES)
            for index in range(NUM_SAMPLES):
                file.seek(last * index // (NUM_SAMPLES - 1), os.SEEK_SET)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
