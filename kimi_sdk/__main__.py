"""`python -m kimi_sdk`, installed as `kimi-chat`: talk with Kimi in a terminal."""

import codecs
import io
import os
import sys

from kimi_sdk.terminal_args import read_options


def main() -> int:
    """Runs the program; gives its exit code."""
    options = read_options()
    # After the arguments, so that --help is there at once.
    from kimi_sdk.errors import KimiError
    from kimi_sdk.terminal import FAILED, INTERRUPTED, WRONG_USAGE, run

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")  # a terminal of few letters shall not end an answer
    try:
        return run(options, os.environ)  # noqa: TID251  # a command
    except KimiError as err:
        sys.stderr.write(f"kimi-chat: {err}\n")
        return WRONG_USAGE
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()  # whoever read the answer has seen enough
        return FAILED
    except OSError as err:
        _forget_output()
        sys.stderr.write(f"kimi-chat: input or output failed: {err.strerror or err}\n")
        return FAILED


def _forget_output() -> None:
    """What Python would still flush at its end has nowhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
