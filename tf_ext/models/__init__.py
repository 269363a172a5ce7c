"""Models that hold tables: `tf_ext.Model`."""

__all__: list[str] = []
