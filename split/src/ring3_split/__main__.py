"""Where the program begins: `python -m ring3_split`, or `ring3-split`.

Everything else is imported only when it is known that it can be: an older Python, or one without
the packages, is told what to do in one line. Until the command runs, control-C ends the program as
it ends any other.
"""

import signal
import sys

OLDEST = (3, 11)


def main() -> int:
    """Runs the command; its exit code. An older Python must be able to read this file."""
    program = "ring3 split"
    if sys.version_info < OLDEST:
        found = ".".join(str(number) for number in sys.version_info[:3])
        sys.stderr.write(
            "{}: Python {}.{} or later is needed, this is {}\n".format(program, *OLDEST, found)
        )
        return 1
    interrupted = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from ring3_split.cli import main as command  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ring3_split"):
            raise
        sys.stderr.write(
            f"{program}: the Python package {error.name} is missing: pip install ./split, or run "
            "it as `ring3 split`\n"
        )
        return 1
    signal.signal(signal.SIGINT, interrupted)
    return command()


if __name__ == "__main__":
    sys.exit(main())
