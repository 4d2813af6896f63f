"""Versions in real services."""

import pytest


@pytest.fixture(params=["kafka", "redis", "s3"])
def url(request, services):
    """The URL of a store without versions, in each service."""
    return services(request.param)
