"""Settings: TOML, environment and flags to one immutable value; every mistake is named at once.

Precedence: flag, variable, file, default. Secrets come by variable or file only. The environment is read nowhere
else in the gateway.

    SettingsError     what is wrong, a line each
"""

from kimi_gateway.settings.load import Flags, load, process_environment
from kimi_gateway.settings.mistakes import SettingsError
from kimi_gateway.settings.model import Admin, Route, Settings, Target, open_mode_problem, with_targets
from kimi_gateway.settings.reload import carry_over
from kimi_gateway.settings.tables import Ledger, Server, Timing

__all__ = [
    "Admin",
    "Flags",
    "Ledger",
    "Route",
    "Server",
    "Settings",
    "SettingsError",
    "Target",
    "Timing",
    "carry_over",
    "load",
    "open_mode_problem",
    "process_environment",
    "with_targets",
]
