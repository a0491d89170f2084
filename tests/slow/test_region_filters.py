"""What compiles for long: parts of images under the other filters of `resize`."""
from __future__ import annotations

from test_regions import MORE_WAYS, data, same_values  # noqa: F401


def test_values_stay_with_other_filters(data):  # noqa: F811
    found = same_values(MORE_WAYS + "emit f, g, i, cls", data)
    assert found["decode_region"] == 3 and not found["decode_image"] and found["resize_part"] == 3
