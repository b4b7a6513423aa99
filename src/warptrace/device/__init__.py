"""The device operations: PTX text of claim, open, event and close. No framework is imported here."""
