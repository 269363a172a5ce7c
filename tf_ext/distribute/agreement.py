# SPDX-License-Identifier: Apache-2.0
"""What differs between processes that have to do the same."""

import typing
from collections.abc import Mapping, Sequence

_SHOWN_CHARACTERS = 200
_ABSENT = "absent"
# Of serialized objects; what they tell, the names of their classes tell.
_SKIPPED = ("module", "registered_name")


def flat(values: Mapping[str, typing.Any]) -> dict[str, str]:
    """Nested values as texts, by their paths.

    Args:
      values: dict of names to what JSON can hold.

    Example:
      >>> from tf_ext.distribute import agreement
      >>> agreement.flat({"optimizer": {"rate": 0.1}, "dim": 4})
      {'optimizer.rate': '0.1', 'dim': '4'}
    """
    texts = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            nested = {
                f"{name}.{key}": one
                for key, one in value.items()
                if key not in _SKIPPED
            }
            texts.update(flat(nested))
        else:
            texts[name] = repr(value)
    return texts


def differences(
    found: Sequence[Mapping[str, str]], tasks: Sequence[str]
) -> str:
    """What differs between tasks, as a text; "" if nothing does.

    Args:
      found: list of dicts as `flat` returns, one per task.
      tasks: list of strings, their names.

    Example:
      >>> from tf_ext.distribute import agreement
      >>> agreement.differences(
      ...     [{"dim": "4"}, {"dim": "8"}, {"dim": "4"}], ["a", "b", "c"])
      'dim is 4 on a, c but 8 on b'
    """
    names = dict.fromkeys(name for values in found for name in values)
    sentences = []
    for name in names:
        tasks_of: dict[str, list[str]] = {}
        for task, values in zip(tasks, found, strict=True):
            tasks_of.setdefault(values.get(name, _ABSENT), []).append(task)
        if len(tasks_of) > 1:
            each = " but ".join(
                f"{value[:_SHOWN_CHARACTERS]} on {', '.join(have)}"
                for value, have in tasks_of.items()
            )
            sentences.append(f"{name} is {each}")
    return "; ".join(sentences)
