"""Constants that several modules of the machine share."""

SMEM_BASE = 1024
"""Shared addresses start here: the first kilobyte is the system's on sm_90, and 0 stays an error."""
