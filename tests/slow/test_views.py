"""Recipes whose many branches take long to compile: compiled = interpreted. test_image_recipes compares with plain scripts."""
from pathlib import Path

import pytest
from running import assert_compiled_is_interpreted

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.parametrize("name", ["simclr", "randaugment"])
def test_views(imagenet, name):
    assert_compiled_is_interpreted(EXAMPLES / f"{name}.pipe", epochs=(0,), root=str(imagenet), batch_size=20, size=32)


PROGRAM = """
seed 8
schema Photo
  jpg: bytes
pipeline p
  from tar("{root}/train-*.tar") as Photo
  photo = resize(decode_image(jpg), [0, 0, 32, 32], 32, 32)
  changed ~ {call}
  emit changed
"""


CALLS = ["trivial_augment(photo)", "auto_augment(photo)", "color_jitter(photo, 0.4, 0.4, 0.4, 0.1, shuffled=true)"]


@pytest.mark.parametrize("call", CALLS)
def test_policies(imagenet, tmp_path, call):
    path = tmp_path / "p.pipe"
    path.write_text(PROGRAM.format(root=imagenet, call=call))
    assert_compiled_is_interpreted(path, epochs=(0,))
