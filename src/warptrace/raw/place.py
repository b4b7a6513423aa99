"""Where a process stands among others: its machine, its parent, its rank. Keys of the manifest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

BOOT_ID = "/proc/sys/kernel/random/boot_id"
RANK_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
}
"""Environment variables of launchers (torchrun, Open MPI, MPICH and Intel MPI, Slurm); the first that is set counts."""


def place() -> dict[str, Any]:
    """``boot`` (equal in all processes of a machine since it started, None if unknown), ``parent_pid``, ``ranks()``."""
    return {"boot": _boot(), "parent_pid": os.getppid(), **ranks()}


def ranks(environ: Mapping[str, str] | None = None) -> dict[str, int | None]:
    """``rank``, ``local_rank`` and ``world_size``, None where no launcher gave them."""
    env = os.environ if environ is None else environ
    return {key: _number(env, names) for key, names in RANK_VARIABLES.items()}


def _number(env: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = env.get(name, "")
        if text.isascii() and text.isdecimal():
            return int(text)
    return None


def _boot() -> str | None:
    """Some sandboxes make up another one at every look: that tells nothing."""
    try:
        looks = []
        for _ in range(2):
            with open(BOOT_ID, encoding="ascii") as file:
                looks.append(file.read().strip())
    except (OSError, ValueError):
        return None
    return looks[0] if looks[0] == looks[1] else None
