"""``python -m leadline`` is ``leadline``."""

from .cli import main

if __name__ == "__main__":
    main()
