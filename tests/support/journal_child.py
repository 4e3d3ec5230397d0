"""A process that books requests as fast as it can and tells which it has booked, until somebody kills it.

Arguments: ledger URL, journal directory, name. Each line it writes is the id of a settled request; every seventh
request is opened and left open.
"""

import os
import sys
from pathlib import Path

from pricing.ledger.drain import Drainer
from pricing.ledger.journal import JournalWriter
from support.ledger_rows import open_row, settled_row


def main() -> None:
    """Runs until killed."""
    url, directory, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    writer = JournalWriter(directory, url, max_bytes=1 << 30, fsync=False, segment_bytes=64 << 10)
    Drainer(directory, url, own=writer, interval_s=0.01, open_after_s=0.02).start()
    number = 0
    while True:
        number += 1
        request_id = f"{name}-{number:06d}"
        writer.append_open(open_row(request_id))
        if number % 7:
            writer.append_settled(settled_row(request_id))
            os.write(1, f"{request_id}\n".encode())


if __name__ == "__main__":
    main()
