"""Brings a database to the newest schema, on a connection that somebody else opened and will commit."""

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def upgrade(connection: Connection) -> None:
    """Runs every step that the database lacks, inside the connection's transaction."""
    command.upgrade(_config(connection), "head")


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", "pricing.ledger:migrations")
    config.attributes["connection"] = connection
    return config
