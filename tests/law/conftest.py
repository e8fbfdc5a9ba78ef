"""Every test begins at the same place of its module's random stream, whatever ran before it."""

import pytest


@pytest.fixture(autouse=True)
def same_random_stream(request):
    if (random := getattr(request.module, "RANDOM", None)) is not None:
        random.manual_seed(0)
