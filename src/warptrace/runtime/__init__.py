"""Inside the traced process: the host cell, trace memory, draining, and what starts and ends a recording."""
