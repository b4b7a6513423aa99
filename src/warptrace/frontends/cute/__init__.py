"""The CuTe DSL front end.

``events`` is the public API: at trace time each call leaves a placeholder operation in the kernel's IR. ``lower``
replaces the placeholders by device operations when the DSL has traced the whole kernel; only then is it known which
events the whole warp executes together (``uniform``), which stand in one straight line, and what the kernel's slots
must hold. ``balance`` warns of ranges that look unpaired. ``hidden`` adds the kernel parameter through which the
kernel finds its trace memory. ``dsl`` is the one place that touches the DSL's hooks.
"""
