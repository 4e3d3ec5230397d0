"""The dialects that the emulator speaks, by name."""

from collections.abc import Mapping

from backends.emulator.moonshot import MOONSHOT
from backends.emulator.openrouter import OPENROUTER
from backends.emulator.profile import Profile
from backends.emulator.sglang import SGLANG
from backends.emulator.vllm import VLLM

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (MOONSHOT, OPENROUTER, VLLM, SGLANG)}
