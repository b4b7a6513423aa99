"""The example of ``warptrace demo``: a small warp-specialised matrix product, run on a GPU or on the emulator.

``kernel`` is the traced kernel, ``problem`` its sizes and what must come out, ``gpu`` and ``emulated`` run it.
"""
