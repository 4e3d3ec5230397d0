"""`python -m kimi_sdk`, installed as `kimi-chat`: talk with Kimi in a terminal."""

import os
import sys

from kimi_sdk.terminal_args import read_options


def main() -> int:
    """Runs the program; gives its exit code."""
    options = read_options()
    # After the arguments, so that --help is there at once.
    from kimi_sdk.errors import KimiError
    from kimi_sdk.terminal import FAILED, INTERRUPTED, WRONG_USAGE, run

    try:
        return run(options, os.environ)  # noqa: TID251  # a command
    except KimiError as err:
        sys.stderr.write(f"kimi-chat: {err}\n")
        return WRONG_USAGE
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the answer has seen enough. What Python would still flush at its end has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
