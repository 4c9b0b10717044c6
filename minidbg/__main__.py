"""``python -m minidbg`` is the command line."""

from minidbg.cli import main

if __name__ == "__main__":
    main()
