"""`python -m stoker`: the command line."""

import sys

from stoker.diagnostics.cli import main

if __name__ == "__main__":
    sys.exit(main())
