"""What a test sees of the HTML report's page."""

from __future__ import annotations

from typing import Any


def facts(page: Any, where: str) -> dict[str, str]:
    names, values = page.locator(f"{where} dt").all_inner_texts(), page.locator(f"{where} dd").all_inner_texts()
    return dict(zip(names, (value.replace("\u202f", " ") for value in values), strict=True))


def pixel(page: Any, x: float, y: float) -> list[int]:
    box = page.locator("#rows").bounding_box()
    got: list[int] = page.evaluate(
        "([x, y]) => [...document.getElementById('rows').getContext('2d').getImageData(x, y, 1, 1).data]",
        [round(x - box["x"]), round(y - box["y"])],
    )
    return got[:3]
