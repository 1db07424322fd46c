"""`python -m nmt_cli`, the same as `nmt`, so that torchrun can start it: `torchrun ... -m nmt_cli train RECIPE`."""

from __future__ import annotations

from nmt_cli.cli.app import main

if __name__ == "__main__":
    main()
