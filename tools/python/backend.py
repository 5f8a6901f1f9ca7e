"""Makes the wheel of `pip install ./tools/python`: three files of text, so that pip needs nothing else, and no network.

The version is that of moepager/__init__.py.
"""
import base64
import hashlib
import re
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE / "moepager"
WHEEL = "Wheel-Version: 1.0\nGenerator: moepager\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def version():
    return re.search(r'^__version__ = "([\d.]+)"$', (PACKAGE / "__init__.py").read_text(), re.MULTILINE)[1]


def metadata():
    return ("Metadata-Version: 2.1\nName: moepager\n"
            f"Version: {version()}\n"
            "Summary: Runs, measures and plans Mixture-of-Experts models with moepager\n"
            "License: Apache-2.0\nRequires-Python: >=3.9\n"
            "Provides-Extra: plot\nRequires-Dist: matplotlib; extra == \"plot\"\n")


def write_wheel(folder, sources):
    info = f"moepager-{version()}.dist-info"
    name = f"moepager-{version()}-py3-none-any.whl"
    files = {**sources, f"{info}/METADATA": metadata().encode(), f"{info}/WHEEL": WHEEL.encode()}
    record = []
    with zipfile.ZipFile(Path(folder) / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")
            archive.writestr(zipfile.ZipInfo(path), data)
        record.append(f"{info}/RECORD,,")
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join(record) + "\n")
    return name


# ---- what pip calls (PEP 517, PEP 660)

def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return write_wheel(wheel_directory, {f"moepager/{file.name}": file.read_bytes()
                                         for file in sorted(PACKAGE.glob("*.py"))})


def get_requires_for_build_editable(config_settings=None):
    return []


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return write_wheel(wheel_directory, {"moepager.pth": f"{HERE}\n".encode()})
