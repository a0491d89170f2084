"""Examples whose many branches take long to compile: compiled = interpreted."""
from pathlib import Path

import pytest
from running import assert_compiled_is_interpreted

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.parametrize("name", ["simclr", "randaugment"])
def test_views(imagenet, name):
    assert_compiled_is_interpreted(EXAMPLES / f"{name}.pipe", epochs=(0,), root=str(imagenet), batch_size=20, size=32)
