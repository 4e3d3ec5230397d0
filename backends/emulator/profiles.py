"""The dialects that the emulator speaks, by name."""

from collections.abc import Mapping

from backends.emulator.moonshot import MOONSHOT
from backends.emulator.profile import Profile

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (MOONSHOT,)}
