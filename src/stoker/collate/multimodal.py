"""Samples of several parts, each collated in a way of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from stoker.collate import mismatch, registry, structure
from stoker.collate.default import collated_by, converted
from stoker.collate.flavours import Flavoured, for_output, is_ours
from stoker.collate.padded import PadCollator, masks_beside
from stoker.errors import BatchError, MissingFieldError

How = str | Callable[[list[Any]], Any]
"""How a field is collated: "stack", "pad", "list", or a function of the list of its values."""

_WORDS = ("stack", "pad", "list")


@dataclass(frozen=True)
class MultimodalCollator(Flavoured):
    """A `collate_fn` for samples of several parts, such as image and text: each field is collated in its own way.

        MultimodalCollator({"image": "stack", "text": tokenise, "audio": "pad", "id": "list"})

    Each field is collated by one of:

    - "stack": as by `default_collate`.
    - "pad": as by `PadCollator()`, with a mask.
    - "list": the list of the values; arrays in them become leaves of the output.
    - a `PadCollator`, a `DetectionCollator` or another collator of Stoker, with its options.
    - any function of the list of values, for instance one that calls a tokenizer. Arrays and tensors in its result
      become leaves of the output. It runs where batches are collated: in the workers, if there are any.

    Samples are mappings, dataclasses, named tuples or tuples, whose fields are numbered. The batch has their structure
    (a tuple becomes a list). In samples that are mappings, the mask of a padded field `"audio"` is the field
    `"audio_mask"`; elsewhere the field becomes `Padded(values, mask)`.

    Stacked and padded leaves are written once, in a worker process into the memory of the batch. Thread safe, and can
    be pickled, if your functions are and can.

    Attributes:
        fields: how each field is collated, by its key, name or position.
        others: how fields are collated that `fields` does not name.
        output: "torch" or "numpy"; None is the output of `default_collate`.

    Raises:
        BatchError: on call, if a named field is missing, or its values cannot be collated so: the message names the
            field and the samples.
        Exception: on call, any that your function raises, with a note that names the field.
        ValueError: on construction, if a way is none of these.
    """

    fields: Mapping[Hashable, How]
    _: KW_ONLY
    others: How = "stack"
    output: registry.Output | None = None

    def __post_init__(self) -> None:
        for field, how in (*self.fields.items(), ("others", self.others)):
            if not callable(how) and how not in _WORDS:
                raise ValueError(f"{field!r} should be collated by one of {_WORDS} or a function, but got {how!r}")

    @property
    def runs_user_code(self) -> bool:
        """Whether a field is collated by a function of the user, which may draw random numbers."""
        return any(callable(how) and not is_ours(how) for how in (*self.fields.values(), self.others))

    def for_output(self, output: registry.Output) -> MultimodalCollator:
        """Returns the same collator with leaves of another kind."""
        fields = {field: _for_output(how, output) for field, how in self.fields.items()}
        return replace(self, fields=fields, others=_for_output(self.others, output), output=output)

    def __call__(self, batch: Sequence[Any]) -> Any:
        """Returns the samples collated into a batch."""
        leaves = registry.leaves_for(self.output)
        met: list[Hashable] = []

        def field(values: Sequence[Any], key: Any) -> Any:
            met.append(key)
            how = self.fields.get(key, self.others)
            if how == "stack":
                return collated_by(values, registry.functions(leaves))
            if how == "list":
                return [converted(value, leaves) for value in values]
            if how == "pad":
                return PadCollator(output=self.output)(values)
            assert callable(how)
            try:
                return self._called(how, list(values), leaves)
            except BatchError:
                raise  # it gets the field's path
            except Exception as error:
                error.add_note(f"raised by the function that collates the field {key!r}")
                raise

        if isinstance(batch[0], Mapping):
            fields = structure.mapping_fields(batch, field)
            whole = structure.rebuilt_mapping(batch[0], masks_beside(fields, self._suffix))
        else:
            whole = structure.collated(batch, field)
        if whole is structure.NOT_A_STRUCTURE:
            whole = structure.collated_dataclass(batch, field)
        if whole is structure.NOT_A_STRUCTURE:
            raise mismatch.unequal_types(batch)
        if absent := [name for name in self.fields if name not in met]:
            raise MissingFieldError(f"fields= names {absent}, but the samples have only {met}: correct it.")
        return whole

    def _called(self, how: Callable[[list[Any]], Any], values: list[Any], leaves: Any) -> Any:
        result = how(values)
        return result if is_ours(how) else converted(result, leaves)

    def _suffix(self, key: Any) -> str | None:
        return getattr(self.fields.get(key, self.others), "mask", "_mask")


def _for_output(how: How, output: registry.Output) -> How:
    return for_output(how, output) if callable(how) else how
