"""Which table a deserialised layer gets.

Layers that shared a table share one new table after `load_model` and
`clone_model`; nothing else does: not a second load, not a lone `from_config`.
Keras hands every layer its own copy of the table's configuration and tells
nobody where one model ends, so this module finds out: within one call into
Keras each layer is made once, so when a layer comes a second time, a new model
has begun.
"""

import sys
import threading
import weakref

_lock = threading.Lock()
# {table uid: (weak reference to its newest copy, layers that took it)}
_newest = {}


def _called_by_keras():
    """Whether a Keras load, clone or deserialisation is on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(("keras.", "tf_keras.")):
            return True
        frame = frame.f_back
    return False


def copy_for(uid, layer_name, make):
    """The copy of table `uid` for the copy of layer `layer_name`.

    Args:
      uid: string that tells the original table from all others.
      layer_name: string, the name of the original layer in its model.
      make: function that makes a new table.

    Returns:
      A new table, or the one that a layer of the same model got before.
    """
    if not _called_by_keras():
        return make()
    with _lock:
        reference, takers = _newest.get(uid, (None, None))
        table = reference() if reference is not None else None
        if table is None or layer_name in takers:
            table = make()
            reference = weakref.ref(table, lambda _: _forget(uid, reference))
            takers = set()
            _newest[uid] = (reference, takers)
        takers.add(layer_name)
        return table


def _forget(uid, reference):
    # A collection can run anywhere, with the lock held too: no lock here, and
    # only an entry that is still this one's is dropped.
    entry = _newest.get(uid)
    if entry is not None and entry[0] is reference:
        _newest.pop(uid, None)
