"""A decoded image and the kernel that reads it: frame by frame where nothing else reads the image, with the values of chunks."""
import numpy as np
import pytest
from conftest import encoded, picture, write_tar
from pipec.compiler.compile import plan_for
from pipec.runtime.execute import Runner, in_turn
from pipec.runtime.inputs import feed_of
from pipec.runtime.objects import load

COUNT, BROKEN = 12, 5


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Twelve photos of 60 to 200 pixels, of which one breaks off in its header."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(8)
    members = []
    for k in range(COUNT):
        height, width = (int(n) for n in rng.integers(60, 200, 2))
        data = encoded(picture(rng, height, width), "JPEG")
        members.append((f"{k:02d}.jpg", data[:100] if k == BROKEN else data))
    write_tar(root / "a.tar", members)
    return root / "a.tar"


def feed(tmp_path, photos, lines):
    path = tmp_path / "p.pipe"
    head = f'schema Photo\n  jpg: bytes\n\npipeline p\n  from tar("{photos}") as Photo\n  skip_bad(at_most=1.0)\n'
    path.write_text(head + "".join(f"  {line}\n" for line in lines))
    plan = plan_for(str(path))
    made = feed_of(plan, plan.above, load(plan.kernels))
    made.start_epoch(0)
    return made


def test_images_are_made_and_used_one_after_the_other(tmp_path, photos):
    made = feed(tmp_path, photos, ["small = resize(decode_image(jpg), [0, 0, 50, 40], 32, 24)", "emit small"])
    runners = [Runner(made.segment.program, made.kernels) for _ in range(2)]
    assert len(runners[0].turns) == 1
    runners[1].turns = frozenset()
    found, most = [], []
    for runner in runners:
        made.idle.put(runner)
        runner.start_epoch(0, [])
        chunk = made.run(0, COUNT)
        assert made.idle.get() is runner
        found.append({int(chunk.positions[r]): row.fields["small"] for r, row in zip(chunk.kept, chunk.rows, strict=True)})
        assert [(f.frame, f.code) for f in chunk.failures] == [(BROKEN, "E0801")]
        runner.bump.clear()
        most.append(runner.bump.most)
    assert list(found[0]) == list(found[1]) == [k for k in range(COUNT) if k != BROKEN]
    for k in found[0]:
        np.testing.assert_array_equal(found[0][k], found[1][k])
    assert most[0] < most[1] / 5   # the memory of one image instead of eleven


def test_what_is_read_again_is_kept(tmp_path, photos):
    made = feed(tmp_path, photos, ["photo = decode_image(jpg)", "small = resize(photo, [0, 0, 50, 40], 32, 24)",
                                   "emit photo, small"])
    assert not in_turn(made.segment.program)
    chunk = made.run(0, COUNT)
    assert len(chunk.rows) == COUNT - 1 and all(row.fields["small"].shape == (32, 24, 3) for row in chunk.rows)
