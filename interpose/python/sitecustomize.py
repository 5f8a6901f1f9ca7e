"""Runs when Python starts under `moepager preload`, which puts this folder first in PYTHONPATH.

Waits for the transformers library to be imported and then attaches moepager_experts to it. Whatever
goes wrong here, the program runs as without us. The next sitecustomize of the path runs after this
one, and the folder leaves sys.path: the program finds both as it would without us.
"""
import os
import sys

_TARGET = "transformers.integrations.moe"


class _Waiting:
    """Finds no module; sees one being looked for, and stands between its loader and itself."""

    def __init__(self, folder):
        self.folder = folder

    def find_spec(self, name, path=None, target=None):
        if name != _TARGET:
            return None
        try:
            sys.meta_path.remove(self)
            return self._wrapped(name, path, target)
        except Exception:
            return None  # the others find it

    def _wrapped(self, name, path, target):
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            try:
                self._attach(module)
            except Exception:
                pass

        spec.loader.exec_module = exec_module
        return spec

    def _attach(self, module):
        sys.path.insert(0, self.folder)
        try:
            import moepager_experts
        finally:
            sys.path.remove(self.folder)
        moepager_experts.attach(module)


def _start(folder):
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    if os.environ.get("MOEPAGER_BUDGET", "all") != "all":
        sys.meta_path.insert(0, _Waiting(folder))


def _run_next():
    """The sitecustomize that Python would have run without us, if there is one."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


try:
    _start(os.path.dirname(__file__))
except Exception:
    pass
_run_next()
