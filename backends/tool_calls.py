"""Tool calls of a stream with a stable index: the key by which every OpenAI client puts the pieces together.

Upstreams leave the index out, or label every call 0 although the ids differ, or repeat id and name in each piece,
or send them as null; clients then weld two calls into one, or lose a name they already had.
"""

from dataclasses import dataclass, field

from backends.json import JsonObject, as_count, as_object, as_str


@dataclass(slots=True)
class _Call:
    index: int
    id: str = ""
    name: str = ""


@dataclass(slots=True)
class CallIndexer:
    """The calls of one choice, as far as they have come."""

    _calls: list[_Call] = field(default_factory=list)
    _by_id: dict[str, _Call] = field(default_factory=dict)
    _by_given: dict[int, _Call] = field(
        default_factory=dict
    )  # the upstream's index -> the call that stands there now

    def place(self, piece: JsonObject) -> None:
        """Gives the piece the index of its call, and leaves id and name in it only where they are new.

        Changes `piece` in place. A new id on a used index is a new call; a piece without id belongs to the call at
        its index or, without an index, to the last one; an index that is free is kept as it is.
        """
        given = as_count(piece.get("index"))
        call_id = as_str(piece.get("id")) or ""
        function = as_object(piece.get("function"))
        name = (as_str(function.get("name")) or "") if function is not None else ""
        call = self._known(given, call_id, name)
        if call is None:
            call = self._new(given)
        if call_id and not call.id:
            call.id = call_id
            self._by_id[call_id] = call
        elif "id" in piece:
            del piece["id"]
        piece["index"] = call.index
        if "type" in piece and piece["type"] is None:
            del piece["type"]
        if function is not None:
            _without_known(function, call)

    def _known(self, given: int | None, call_id: str, name: str) -> _Call | None:
        """The call that this piece continues, None where it begins one."""
        if given is not None:
            here = self._by_given.get(given)
            if here is None or not call_id or not here.id or here.id == call_id:
                return here
            return self._by_id.get(call_id)
        if call_id:
            return self._by_id.get(call_id)
        if name or not self._calls:
            return None
        return self._calls[-1]

    def _new(self, given: int | None) -> _Call:
        taken = {call.index for call in self._calls}
        index = 0 if given is None or given < 0 else given
        while index in taken:
            index += 1
        call = _Call(index)
        self._calls.append(call)
        if given is not None:
            self._by_given[given] = call
        return call


def _without_known(function: JsonObject, call: _Call) -> None:
    """Takes null names and arguments out of a piece, and a name that the call already has."""
    name = function.get("name")
    if isinstance(name, str) and name and name != call.name:
        call.name += name
    elif "name" in function:
        del function["name"]
    if "arguments" in function and function["arguments"] is None:
        del function["arguments"]
