"""The event API's semantics as one table of small kernels, run on the emulator and on hardware. See README.md."""
