"""The life of a gateway process: serving, draining, and the answers under way that a stop has to end."""

from kimi_gateway.ports import Answer


class Lifecycle:
    """What the server, the routes and the relay know together. Used from one event loop only.

    `draining` turns true with the first signal: /ready says so while requests are still taken. `accepting` turns
    false when the listener closes.
    """

    def __init__(self) -> None:
        self.draining = False
        self.accepting = True
        self._answers: set[Answer] = set()

    @property
    def open_count(self) -> int:
        """Answers under way."""
        return len(self._answers)

    def track(self, answer: Answer) -> None:
        """Notes an answer that has begun."""
        self._answers.add(answer)

    def untrack(self, answer: Answer) -> None:
        """Forgets an answer that is settled; safe for one that was never tracked."""
        self._answers.discard(answer)

    def begin_drain(self) -> None:
        """From now on /ready answers 503."""
        self.draining = True

    def stop_accepting(self) -> None:
        """From now on no new request is taken."""
        self.draining = True
        self.accepting = False

    def interrupt_all(self) -> int:
        """Ends every answer under way with `shutting_down`; gives back how many there were."""
        answers = list(self._answers)
        for answer in answers:
            answer.interrupt()
        return len(answers)
