"""``python -m minidbg`` is the command line."""

from minidbg.commands import main

if __name__ == "__main__":
    main()
