"""`python -m hsplan`: the same as the command `hsplan`."""

import sys

from hsplan.cli import main

if __name__ == "__main__":
    sys.exit(main())
