"""A user's own Python for `segment.pipe`."""
import numpy as np

# Cityscapes: ids 0 to 33 to the 19 training ids, everything else 255.
TRAINING_ID = np.full(256, 255, np.uint8)
TRAINING_ID[[7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]] = np.arange(19)


def merge_classes(mask):
    """A label mask u8[h, w] with its ids replaced by training ids."""
    return TRAINING_ID[mask]
