# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_ext.serving`."""

import sys

from tf_ext.serving import store_cli

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in store_cli.COMMANDS:
        sys.exit(store_cli.main(sys.argv[1:]))
    from tf_ext.serving.cli import main

    sys.exit(main())
