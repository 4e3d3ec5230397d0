"""State of a gateway that may be shared by several: `open_state` gives what an address stands for."""

from kimi_gateway.adapters.state.embedded import Embedded, EmbeddedError
from kimi_gateway.adapters.state.opening import State, open_state
from kimi_gateway.core.state_url import StateUrl, StateUrlError, state_url

__all__ = ["Embedded", "EmbeddedError", "State", "StateUrl", "StateUrlError", "open_state", "state_url"]
