"""Which tests run in which tier: by day, the fast ones; the slow ones too in `make test-all`."""

import pytest


def by_day(values, chosen):
    """The values of a parameter, of which all but the chosen ones are marked slow."""
    unknown = set(chosen) - set(values)
    assert not unknown, f"no such values: {unknown}"
    return [
        value if value in chosen else pytest.param(value, marks=pytest.mark.slow)
        for value in values
    ]
