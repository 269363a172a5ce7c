# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_ext.snapshot`."""

import sys

from tf_ext.snapshot.cli import main

if __name__ == "__main__":
    sys.exit(main())
