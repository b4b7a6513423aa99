"""How a pytest of our own loads the plugin."""

from __future__ import annotations

from importlib.metadata import entry_points


def plugin_words() -> list[str]:
    """Options for pytest: none where the package is installed, since pytest then loads its plugin by itself."""
    installed = any(entry.value == "warptrace.pytest_plugin" for entry in entry_points(group="pytest11"))
    return [] if installed else ["-p", "warptrace.pytest_plugin"]
