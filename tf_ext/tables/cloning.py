"""Which table a deserialised layer gets.

Layers that shared a table share one new table after `load_model` and
`clone_model`; nothing else does: not a second load, not a lone `from_config`.
Keras hands every layer its own copy of the table's configuration and tells
nobody where one model ends. What ends with it is the outermost of Keras's own
calls that make layers: its frame keeps the tables.
"""

from tf_ext._keras import running_calls

# Functions of Keras that make layers of configurations.
_MAKERS = (
    "clone_model",
    "deserialize",
    "deserialize_keras_object",
    "from_config",
    "load_model",
    "model_from_config",
    "model_from_json",
)
_TABLES = "__tf_ext_tables__"


def _tables_of_call():
    """The tables that the running call into Keras made: `{uid: table}`."""
    found = running_calls(_MAKERS)
    # Names that the function does not use stay in its frame till it returns.
    return found[-1].f_locals.setdefault(_TABLES, {}) if found else {}


def copy_for(uid, make):
    """The copy of table `uid` for the copy of one of its layers.

    Args:
      uid: string that tells the original table from all others.
      make: function that makes a new table.

    Returns:
      A new table, or the one that another layer of the same model got.
    """
    tables = _tables_of_call()
    if uid not in tables:
        tables[uid] = make()
    return tables[uid]
