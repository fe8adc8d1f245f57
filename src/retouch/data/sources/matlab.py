"""MATLAB's .mat files, which two benchmarks describe themselves with."""

from pathlib import Path
from typing import Any

import numpy as np

from retouch.errors import UserError


def load_mat(file: Path) -> dict[str, Any]:
    """Its variables: structs with attributes, cells and vectors as flat arrays."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise UserError(f"{file} needs scipy: pip install 'retouch[benchmarks]'") from None
    try:
        found: dict[str, Any] = loadmat(file, squeeze_me=True, struct_as_record=False)
    except (OSError, ValueError, NotImplementedError) as why:
        raise UserError(f"{file} cannot be read as a .mat file ({why}); fetch it again") from None
    return {name: np.atleast_1d(value) for name, value in found.items() if name[:2] != "__"}
