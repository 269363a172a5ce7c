# SPDX-License-Identifier: Apache-2.0
"""The setuptools command that packs the wheel."""

import os

from setuptools.command.bdist_wheel import bdist_wheel

# The first second that a zip file can hold, for builds that say no other.
_DATE = "315532800"


class ReproducibleWheel(bdist_wheel):
    """bdist_wheel that makes the same bytes of the same files.

    Whenever they were written, and with whatever permissions for the group.
    """

    def run(self):
        os.environ.setdefault("SOURCE_DATE_EPOCH", _DATE)
        super().run()

    def write_wheelfile(self, wheelfile_base, *args, **kwargs):
        # The last file that is written before all of them are packed.
        super().write_wheelfile(wheelfile_base, *args, **kwargs)
        for folder, _, names in os.walk(self.bdist_dir):
            for name in names:
                mode = 0o755 if name.endswith(".so") else 0o644
                os.chmod(os.path.join(folder, name), mode)
