"""Tools from typed functions: what the model is told of them, and how its calls are run.

    @tool
    def weather(city: str, days: int = 1) -> Forecast:
        '''The forecast for a city.

        Args:
            city: with its country, such as "Oslo, Norway"
        '''

A plain function may stand wherever a `Tool` may. A docstring is the description; parameters are described there
(Google, NumPy or Sphinx style) or by `Annotated[str, "…"]`. Arguments are validated before the function sees them.
Whatever goes wrong with a call is told to the model, so that it can do better; it never ends the conversation.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, overload

from typing_extensions import override

from backends.json import JsonObject, as_object, as_str
from backends.tool_rules import BUILTIN, name_violations
from backends.tool_rules import Tool as NamedTool
from kimi_sdk.errors import InvalidInput
from kimi_sdk.tools_calls import ToolCall, ToolResult
from kimi_sdk.tools_docs import read_doc
from kimi_sdk.tools_flavour import in_flavour, listed
from kimi_sdk.tools_result import Unwritable, result_text, said_by
from kimi_sdk.tools_schema import BadArguments, parameters_of

P = ParamSpec("P")
R = TypeVar("R")

Function: TypeAlias = Callable[..., Any]
Read: TypeAlias = Callable[[str], tuple[list[Any], dict[str, Any]]]

Approve: TypeAlias = Callable[[ToolCall], bool | str | Awaitable[bool | str]]
"""Asked before a call with fitting arguments is run: True runs it; False, or a reason, does not, and the model is
told. What it raises ends the chat's call; `StopIteration`, which a stream would take for its own end, as
`InvalidInput`."""

_log: Final = logging.getLogger("kimi_sdk.tools")
logging.getLogger("kimi_sdk").addHandler(logging.NullHandler())  # silent until the application wants to hear


class Tool(Generic[P, R]):
    """A function with what the model is told of it. Called, it is the function."""

    def __init__(
        self, function: Callable[P, R], *, name: str, description: str, parameters: JsonObject, read: Read
    ):
        """Made by `tool` and `tool_from_schema`."""
        self.function = function
        self.name = name
        self.description = description
        self.parameters = parameters
        self.read = read
        self.__doc__ = description

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def definition(self) -> JsonObject:
        """What a request's `tools` holds for it."""
        function: JsonObject = {"name": self.name}
        if self.description:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": self.parameters}}

    @property
    def is_async(self) -> bool:
        """The function is a coroutine function."""
        return _is_async(self.function)

    @override
    def __repr__(self) -> str:
        return f"Tool({self.name})"


AnyTool: TypeAlias = Tool[..., Any]


@overload
def tool(function: Callable[P, R], /, *, name: str = "", description: str = "") -> Tool[P, R]: ...
@overload
def tool(*, name: str = "", description: str = "") -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[P, R] | None = None, /, *, name: str = "", description: str = "") -> Any:
    """The tool of a typed function, sync or async; with or without parentheses also a decorator.

    `name` and `description` default to those of the function. Raises `InvalidInput` for a function that the model
    could not call: parameters without types or of types that JSON cannot hold, `*args`, a name Kimi refuses.
    """
    if function is None:
        return lambda held: tool(held, name=name, description=description)
    if inspect.isclass(function) or not callable(function):
        raise InvalidInput(f"a tool is a function, not {function!r}")
    named = name or _name_of(function)
    doc = read_doc(_docstring(function))
    parameters = parameters_of(function, named, doc)
    _check_names([(named, "function")])
    return Tool(
        function,
        name=named,
        description=description or doc.description,
        parameters=parameters.schema,
        read=parameters.read,
    )


def tool_from_schema(
    function: Callable[[JsonObject], object], *, name: str, description: str, parameters: JsonObject
) -> AnyTool:
    """A tool whose schema is at hand already, from a tool server for example. The function takes the arguments as
    one object, as the model sent it. Raises `InvalidInput`."""
    _check_names([(name, "function")])
    schema = in_flavour(parameters, what=f"the tool {name}")
    return Tool(function, name=name, description=description, parameters=schema, read=_read_object)


def _read_object(arguments: str) -> tuple[list[Any], dict[str, Any]]:
    held = as_object(ToolCall("", "", arguments.strip() or "{}").parsed)
    if held is None:
        raise BadArguments((f"the whole: not a JSON object: {arguments[:60]}",))
    return [held], {}


class ToolBox:
    """The tools of a conversation: what a request says of them, and how calls are run.

    `run` calls one after the other; `run_async` all at once, sync functions in threads. Neither raises for what a
    tool does: a name that is unknown, arguments that do not fit, an exception, a value that JSON cannot hold are
    results that name the problem.
    """

    def __init__(
        self, tools: Iterable[AnyTool | Function | JsonObject] = (), *, approve: Approve | None = None
    ) -> None:
        """`tools` are functions, tools, or built-in functions in Moonshot's form, whose calls are echoed as its
        documentation asks. Raises `InvalidInput`, also for two tools of one name."""
        held = [_builtin(each) if isinstance(each, dict) else _tool(each) for each in tools]
        definitions = [each if isinstance(each, dict) else each.definition for each in held]
        names = [each["function"]["name"] if isinstance(each, dict) else each.name for each in held]  # type: ignore[call-overload,index]
        _check_names([(str(name), str(made["type"])) for name, made in zip(names, definitions, strict=True)])
        self._definitions = definitions
        self._tools = {each.name: each for each in held if isinstance(each, Tool)}
        self._names = tuple(str(name) for name in names)
        self._approve = approve

    @property
    def definitions(self) -> list[JsonObject]:
        """What a request's `tools` holds; empty where there are none, and then the field is left out."""
        return [*self._definitions]

    @property
    def names(self) -> tuple[str, ...]:
        """The names in their order."""
        return self._names

    def __len__(self) -> int:
        return len(self._definitions)

    def run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """The results, one call after the other."""
        return [self.run_one(call) for call in calls]

    def run_one(self, call: ToolCall) -> ToolResult:
        """The result of one call. An async function runs in an event loop of its own."""
        ready = self._ready(call)
        if isinstance(ready, ToolResult):
            return ready
        if self._approve is not None:
            answer = _asked(self._approve, call).value()
            refused = _refused(call, _to_end(answer) if inspect.isawaitable(answer) else answer)
            if refused is not None:
                return refused
        try:
            value = ready()
            return _done(call, _to_end(value) if inspect.isawaitable(value) else value)
        except (
            Exception,
            asyncio.CancelledError,
        ) as err:  # the application's code: the model is told, and the log
            return _failed(call, err)

    async def run_async(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """The results in the order of the calls, which run at the same time.

        Approvals are asked for one after the other; what is approved runs meanwhile. A thread that has begun ends
        by itself, also where this is cancelled.
        """
        tasks: list[asyncio.Task[ToolResult]] = []
        try:
            for call in calls:
                ready = await self._approved(call)
                tasks.append(asyncio.create_task(_run(call, ready)))
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()  # changes nothing for those that are done
            await asyncio.gather(*tasks, return_exceptions=True)

    async def run_one_async(self, call: ToolCall) -> ToolResult:
        """The result of one call; a sync function runs in a thread."""
        return (await self.run_async([call]))[0]

    async def _approved(self, call: ToolCall) -> "_Ready | ToolResult":
        ready = self._ready(call)
        if isinstance(ready, ToolResult) or self._approve is None:
            return ready
        if _is_async(self._approve):
            asked: Any = self._approve(call)
        else:
            asked = (await asyncio.to_thread(_asked, self._approve, call)).value()
        return _refused(call, await asked if inspect.isawaitable(asked) else asked) or ready

    def _ready(self, call: ToolCall) -> "_Ready | ToolResult":
        """The function with its arguments, or what keeps it from being called."""
        held = self._tools.get(call.name)
        if held is None and call.name in self._names:  # a built-in function: its result is its arguments
            return ToolResult(call, call.arguments)
        if held is None:
            there = f"The tools are: {', '.join(self._names)}." if self._names else "There are none."
            return _error(call, f'there is no tool "{call.name}". {there}')
        try:
            args, kwargs = held.read(call.arguments)
        except BadArguments as err:
            problems = "\n".join(f"- {problem}" for problem in err.problems)
            return _error(call, f"{call.name} was not called, its arguments do not fit:\n{problems}", err)
        except Exception as err:  # a validator of the application's own types
            return _failed(call, err)
        return partial(held.function, *args, **kwargs)


_Ready: TypeAlias = Callable[[], Any]


async def _run(call: ToolCall, ready: _Ready | ToolResult) -> ToolResult:
    if isinstance(ready, ToolResult):
        return ready
    try:
        value = ready() if _is_async(ready) else (await asyncio.to_thread(_outcome, ready)).value()
        return _done(call, await value if inspect.isawaitable(value) else value)
    except asyncio.CancelledError as err:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        return _failed(call, err)  # nobody cancels this task: the tool itself has raised it
    except Exception as err:  # as in run_one
        return _failed(call, err)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a function came to, as a value: a future cannot hold every exception, and never ends with one."""

    returned: Any = None
    raised: BaseException | None = None

    def value(self) -> Any:
        """What was returned. Raises what was raised."""
        if self.raised is not None:
            raise self.raised
        return self.returned


def _outcome(function: Callable[[], Any]) -> _Outcome:
    try:
        return _Outcome(function())
    except BaseException as err:  # handed on to the task that waits
        return _Outcome(raised=err)


def _asked(approve: Approve, call: ToolCall) -> _Outcome:
    """What approval answers. `StopIteration` would end the generators on its way as if all were said."""
    outcome = _outcome(partial(approve, call))
    if isinstance(outcome.raised, StopIteration | StopAsyncIteration):
        kind = type(outcome.raised).__name__
        told = InvalidInput(f"approve raised {kind} instead of giving True, False or a reason; catch it there")
        told.__cause__ = outcome.raised
        return _Outcome(raised=told)
    return outcome


def _done(call: ToolCall, value: Any) -> ToolResult:
    try:
        return ToolResult(call, result_text(value))
    except Unwritable as err:
        _log.warning("the result of the tool %s cannot be written as JSON: %s", call.name, err)
        return _error(call, f"{call.name} was called, but its result cannot be written as JSON: {err}", err)


def _failed(call: ToolCall, err: BaseException) -> ToolResult:
    _log.warning("the tool %s failed", call.name, exc_info=err)
    said = said_by(err)
    return _error(call, f"{call.name} failed with {type(err).__name__}{f': {said}' if said else ''}", err)


def _refused(call: ToolCall, answer: object) -> ToolResult | None:
    if answer is True:
        return None
    if answer is False:
        return _error(call, f"{call.name} was not called: the user does not allow it.")
    if isinstance(answer, str):
        return _error(call, f"{call.name} was not called: {answer}")
    raise InvalidInput(f"approve must return True, False or a reason, not {answer!r}")


def _error(call: ToolCall, text: str, err: BaseException | None = None) -> ToolResult:
    return ToolResult(call, f"Error: {text}", is_error=True, error=err)


def _to_end(awaitable: Awaitable[Any]) -> Any:
    """The value of an awaitable, from sync code; in a notebook, whose loop runs already, from a thread."""

    async def value() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(value())
    return _in_thread(value())


def _in_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(asyncio.run(coroutine))
        except BaseException as err:  # handed on to the thread that waits
            future.set_exception(err)

    thread = threading.Thread(target=work, name="kimi-tool")
    thread.start()
    thread.join()
    return future.result()


def _tool(value: AnyTool | Function) -> AnyTool:
    return value if isinstance(value, Tool) else tool(value)


def _builtin(value: JsonObject) -> JsonObject:
    name = as_str((as_object(value.get("function")) or {}).get("name"))
    if value.get("type") != BUILTIN or not name:
        raise InvalidInput(
            f"a tool given as an object must be a built-in function, such as "
            f'{{"type": "{BUILTIN}", "function": {{"name": "$web_search"}}}}; for others use tool_from_schema'
        )
    return value


def _check_names(named: Iterable[tuple[str, str]]) -> None:
    refused = name_violations(
        NamedTool(kind, name, None, f"tool {name}", f"tool {name}", "") for name, kind in named
    )
    if refused:
        raise InvalidInput(f"Kimi does not take these tools: {listed(refused)}")


def _name_of(function: Function) -> str:
    target = function
    while isinstance(target, partial):
        target = target.func
    return str(getattr(target, "__name__", type(target).__name__))


def _docstring(function: Function) -> str | None:
    target = function
    while isinstance(target, partial):
        target = target.func
    if inspect.isroutine(target):
        return inspect.getdoc(target)
    return inspect.getdoc(type(target).__call__) or inspect.getdoc(target)


def _is_async(function: Function) -> bool:
    target = function
    while isinstance(target, partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004
