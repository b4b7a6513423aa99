"""Front ends: one package a kernel language. They know device ops and the wire format, nothing of decoding."""
