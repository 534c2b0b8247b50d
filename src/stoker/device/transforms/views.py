"""Several views of each image of a batch, for test-time augmentation: made where the batch lies, from one transfer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from stoker.device.transforms.operation import BatchOperation
from stoker.errors import ImageArgumentError

View = Callable[[Any], Any] | None


class TestTimeViews(BatchOperation):
    """Makes views of each image: (N, C, H, W) becomes (N * views, C, height, width), the views of an image adjacent.

    Other fields stay as they are. `stoker.average_views(outputs, views)` averages a model's outputs for them. As a
    `batch_transform` with `device=`, the images are copied to the device once.

        views = TestTimeViews([None, RandomHorizontalFlip(1.0)])
        outputs = stoker.average_views(model(views(images)), len(views))

    Args:
        views: a function of images (N, C, H, W) for each view, such as an operation of `stoker.device`; None for the
            images themselves. All give one size.
        field: see `BatchOperation`.
    """

    __test__ = False  # of pytest: no test class

    def __init__(self, views: Sequence[View], field: Hashable | None = None) -> None:
        super().__init__(field)
        if not views or not all(view is None or callable(view) for view in views):
            raise ImageArgumentError(f"views={views!r} must be one function of images or more, or None among them")
        self.views = list(views)

    def __len__(self) -> int:
        """Returns the number of views of an image."""
        return len(self.views)

    def apply(self, images: Any) -> Any:
        import torch

        made = [images if view is None else view(images) for view in self.views]
        if len({each.shape for each in made}) > 1:
            shapes = [tuple(each.shape[1:]) for each in made]
            raise ImageArgumentError(f"the views have different shapes, {shapes}: crop or resize them to one")
        return torch.stack(made, 1).flatten(0, 1)
