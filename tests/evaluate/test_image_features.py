"""Features come in the requested order."""

import numpy as np
import torch
from tiny import images, tiny_clip

from retouch.evaluate.image_features import image_features


def test_features_come_in_the_requested_order():
    clip, some = tiny_clip(), images("test", 6, 4)
    features = image_features(clip, some, np.arange(24))
    indices = np.array([7, 23, 0, 7, 3, 2])
    torch.testing.assert_close(image_features(clip, some, indices), features[indices])
