"""`pad_to=` of a loader: fields padded to one of a few lengths, as CUDA graphs and compiled models want them."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.collate import registry
from stoker.collate.flavours import CollateFn, Flavoured, is_default
from stoker.collate.padded import PadCollator, Padded, Path, Sizes, collated


@dataclass(frozen=True)
class FixedSizes(Flavoured):
    """A `PadCollator` whose fields get the least of some sizes that fits. Stateless, and can be pickled.

    Attributes:
        collator: pads all these fields, and perhaps others.
        sizes: of the first dimension of a field's samples, ascending, by its path.
    """

    collator: PadCollator
    sizes: Sizes

    def for_output(self, output: registry.Output) -> FixedSizes:
        """Returns the same collator with leaves of another kind."""
        return replace(self, collator=self.collator.for_output(output))

    def __call__(self, batch: Sequence[Any]) -> Any:
        """Returns the samples collated into a batch."""
        return collated(self.collator, batch, self.sizes)

    def excess(self, batch: Any) -> str | None:
        """Returns a warning if a field of a batch is longer than all its sizes; the same for each batch."""
        for path, sizes in self.sizes.items():
            leaf = batch
            for key in path:
                leaf = getattr(leaf, key) if isinstance(key, str) and hasattr(leaf, key) else leaf[key]
            leaf = leaf.values if isinstance(leaf, Padded) else leaf
            if leaf.shape[1] > sizes[-1]:
                return (
                    f"pad_to: a batch has a field {_shown(path)} that is longer than {sizes[-1]}, the largest size. "
                    "Such batches keep their own length: add a larger size, or cut the samples "
                    f"(PadCollator(max_length={sizes[-1]}))."
                )
        return None


def padded_to(collate_fn: CollateFn, pad_to: Mapping[Any, Any] | None) -> CollateFn:
    """Returns a collation with these fields padded to fixed sizes; `collate_fn` itself if `pad_to` is None.

    Args:
        collate_fn: the default collation, or a `PadCollator`.
        pad_to: one size or several for each field: a key, a place, the name of an attribute, or a tuple of them.

    Raises:
        ValueError, TypeError: it is another function, or the sizes are no positive integers.
    """
    if pad_to is None:
        return collate_fn
    if not isinstance(pad_to, Mapping) or not pad_to:
        raise TypeError(f'pad_to should be a mapping such as {{"input_ids": (128, 256)}} or None, but got {pad_to!r}')
    sizes = {field if isinstance(field, tuple) else (field,): _sizes(field, value) for field, value in pad_to.items()}
    if is_default(collate_fn):
        collate_fn = PadCollator({}, mask=None)
    if not isinstance(collate_fn, PadCollator) or collate_fn.dims[0] != 0:
        raise ValueError(
            f"pad_to needs the default collation of batches, or a PadCollator with the dimension 0 in dims=, but "
            f"collate_fn={collate_fn!r}. Pad to fixed sizes in your own function instead."
        )
    own = collate_fn.padding_value
    if isinstance(own, Mapping):
        named = {field if isinstance(field, tuple) else (field,) for field in own}
        collate_fn = replace(collate_fn, padding_value={**own, **{path: 0 for path in sizes if path not in named}})
    return FixedSizes(collate_fn, sizes)


def _sizes(field: Hashable, value: Any) -> tuple[int, ...]:
    try:
        sizes = sorted(map(operator.index, value if isinstance(value, Sequence) else (value,)))
    except TypeError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise ValueError(f"pad_to[{field!r}] should be a positive integer or several, but got {value!r}")
    return tuple(sizes)


def _shown(path: Path) -> str:
    return repr(path[0] if len(path) == 1 else path)
