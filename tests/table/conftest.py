"""Tables found by key, in every storage."""

import pytest
from table import storages


@pytest.fixture(params=storages.ALL)
def storage(request):
    return request.param


@pytest.fixture
def make_table(storage):
    return storage.make_table
