"""Images with targets of any length: the images in one leaf, the targets in a list."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

from stoker.collate import mismatch, registry, structure
from stoker.collate.default import collated_by, converted
from stoker.collate.flavours import Flavoured
from stoker.collate.padded import PadCollator, masks_beside
from stoker.errors import MissingFieldError


@dataclass(frozen=True)
class DetectionCollator(Flavoured):
    """A `collate_fn` for object detection and segmentation: it puts images together, and lists everything else.

    A sample is `(image, target)`, a longer tuple, a mapping or a dataclass. The batch has its structure (a tuple
    becomes a list): the image's field holds the images, and each other field is the list of the samples' values, so
    that each image keeps boxes, labels and masks of its own number.

        DetectionCollator()         # images of one size: shape (batch, C, H, W); targets: a list of dicts
        DetectionCollator("pad")    # images at the top left of shape (batch, C, most H, most W), and a mask
        DetectionCollator("list")   # both listed, as torchvision's detection models take them

    With "pad", the mask has shape (batch, most H, most W) and is True for pixels of the image. In samples that are
    mappings, the mask of field `"image"` is the field `"image_mask"`. Elsewhere the images become
    `Padded(values, mask)`. Padding is at the right and at the bottom, so boxes in pixels stay right. Boxes as shares of
    the image's size refer to the image without its padding.

    Arrays in targets become leaves of the output. With workers in other processes they are copied once; with
    `num_workers=0` they share memory with the samples, as all that is listed does. Stateless: any thread and process
    may call it, and it can be pickled.

    Attributes:
        images: "stack", "pad" or "list".
        image: the field of the image, a key, a name or a position; None for "image", and for the first of a tuple.
        padding_value: of pixels beside an image.
        multiple_of: padded sizes are rounded up to a multiple of it.
        dims: the dimensions of height and width: (1, 2) for (C, H, W), (0, 1) for (H, W, C) and (H, W).
        mask: suffix of a key that names the mask; None makes no mask, and no `Padded`.
        output: "torch" or "numpy"; None is the output of `default_collate`.

    Raises:
        BatchError: on call. The samples have no such field, or their images cannot be put together: the message names
            the samples and their shapes.
        ValueError: on construction, if an argument is out of range.
    """

    images: Literal["stack", "pad", "list"] = "stack"
    _: KW_ONLY
    image: Hashable | None = None
    padding_value: float = 0
    multiple_of: int = 1
    dims: Sequence[int] = (1, 2)
    mask: str | None = "_mask"
    output: registry.Output | None = None

    def __post_init__(self) -> None:
        if self.images not in ("stack", "pad", "list"):
            raise ValueError(f"images should be 'stack', 'pad' or 'list', but got {self.images!r}")
        self._padding()

    def for_output(self, output: registry.Output) -> DetectionCollator:
        """Returns the same collator with leaves of another kind."""
        return replace(self, output=output)

    def __call__(self, batch: Sequence[Any]) -> Any:
        """Returns the samples collated into a batch."""
        leaves = registry.leaves_for(self.output)
        field_of_image = self._field_of(batch[0])
        met = False

        def field(values: Sequence[Any], key: Any) -> Any:
            nonlocal met
            if key != field_of_image:
                return [converted(value, leaves) for value in values]
            met = True
            return self._put_together(values)

        if isinstance(batch[0], Mapping):
            fields = structure.mapping_fields(batch, field)
            whole = structure.rebuilt_mapping(batch[0], masks_beside(fields, lambda _: self.mask))
        else:
            whole = structure.collated(batch, field)
        if whole is structure.NOT_A_STRUCTURE:
            whole = structure.collated_dataclass(batch, field)
        if whole is structure.NOT_A_STRUCTURE:
            raise mismatch.unequal_types(batch)
        if not met:
            raise MissingFieldError(
                f"a sample, {type(batch[0]).__name__}, has no field {field_of_image!r} for its image: name it by image="
            )
        return whole

    def _field_of(self, sample: Any) -> Hashable:
        if self.image is not None:
            return self.image
        is_numbered = isinstance(sample, Sequence) and not hasattr(sample, "_fields")
        return 0 if is_numbered else "image"

    def _put_together(self, images: Sequence[Any]) -> Any:
        if self.images == "list":
            leaves = registry.leaves_for(self.output)
            return [converted(image, leaves) for image in images]
        shapes = [tuple(getattr(image, "shape", ())) for image in images]
        if len(set(shapes)) > 1 and () not in shapes:
            if self.images == "stack":
                raise mismatch.unequal_shapes(
                    images,
                    'Images of different sizes are padded by stoker.DetectionCollator("pad"), and listed by '
                    '"list"; or resize them in the dataset.',
                )
            others = {tuple(size for dim, size in enumerate(shape) if dim not in self.dims) for shape in shapes}
            if len(others) > 1:
                raise mismatch.unequal_shapes(
                    images,
                    f"They may differ in the dimensions {tuple(self.dims)} only: give all images one number of "
                    "channels in the dataset, or correct dims=.",
                )
        if self.images == "pad":
            return self._padding()(images)
        return collated_by(images, registry.functions(registry.leaves_for(self.output)))

    def _padding(self) -> PadCollator:
        return PadCollator(
            self.padding_value, multiple_of=self.multiple_of, dims=self.dims, mask=self.mask, output=self.output
        )
