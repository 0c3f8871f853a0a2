"""The names of files of weights, and what is said of files that are not there; without torch."""

from pathlib import Path

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


def missing_file(directory: Path, file_name: str) -> str:
    """Return what is wrong with a directory without a file that its index names."""
    return f"{directory}: {INDEX_FILE} names {file_name}, which is missing"


def no_safetensors(directory: Path) -> str:
    """Return why a directory has no weights that are read."""
    pickled = sorted(
        path.name
        for pattern in ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
        for path in directory.glob(pattern)
    )
    if pickled:
        return (
            f"{directory}: only pickled weights ({pickled[0]}), which can run code when read; "
            "convert them to safetensors once, with transformers: "
            "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR)"
        )
    return f"{directory}: no {SINGLE_FILE} and no {INDEX_FILE}"
