"""A library's stand-in for the DSL's event module: functions of a module."""

from __future__ import annotations


def mark(name, payload=None):
    pass


def range_push(name, payload=None):
    pass


def range_pop():
    pass


def range_start(name, payload=None):
    return None


def range_end(token, payload=None):
    pass


def sentinel_token(name):
    return None
