# SPDX-License-Identifier: Apache-2.0
"""Calls a function as soon as modules have been imported by somebody else."""

import importlib.abc
import importlib.machinery
import sys
import types
import typing
from collections.abc import Callable, Collection, Sequence


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as the other finders do, and hears when they are executed.

    Attributes:
      executing: int, how many of the modules are being executed: one of them
        may import another.
    """

    def __init__(
        self, names: Collection[str], package: str, function: Callable[[], bool]
    ) -> None:
        self._names, self._prefix = names, f"{package}."
        self._function = function
        self.executing = 0

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if not (fullname in self._names or fullname.startswith(self._prefix)):
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(
                fullname, path, target
            )
            if spec is not None:
                if isinstance(spec.loader, importlib.abc.Loader):
                    own: typing.Any = _Loader(spec.loader, self)
                    spec.loader = own
                return spec
        return None

    def executed(self) -> None:
        """Is called after each of the modules has been executed."""
        if self.executing or self not in sys.meta_path:
            return
        sys.meta_path.remove(self)  # As the function imports modules itself.
        if not self._function():
            sys.meta_path.insert(0, self)


class _Loader:
    """Executes a module with the loader that it would have had, and keeps."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def __getattr__(self, name: str) -> typing.Any:
        # What others ask of a loader: to create a module, or its code.
        return getattr(self._loader, name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._loader
        typing.cast(typing.Any, module.__spec__).loader = self._loader
        self._finder.executing += 1
        try:
            self._loader.exec_module(module)
        finally:
            self._finder.executing -= 1
        self._finder.executed()


def when_imported(
    names: Collection[str], package: str, function: Callable[[], bool]
) -> None:
    """Calls a function after imports of modules, until it returns True.

    Args:
      names: strings, of modules.
      package: string, a package of which all other modules count as well: while
        one of them is being imported, the function is not called.
      function: is called after one of them was executed, and none is any more.
        It must not raise an Exception, as it would be that of the import.
    """
    sys.meta_path.insert(0, _Finder(names, package, function))
