"""Callers' keys, which budget alerts were sent, and an index over what of a key has no known end."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the three tables and the index."""
    op.create_table(
        "kimi_keys",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("revoked_at", sa.Double),
        sa.Column("policy", sa.Text, nullable=False),
    )
    op.create_table(
        "kimi_key_secrets",
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, sa.ForeignKey("kimi_keys.name"), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    op.create_table(
        "kimi_budget_alerts",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("period", sa.Text, primary_key=True),
        sa.Column("budget", sa.Text, primary_key=True),
        sa.Column("budget_nano", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("percent", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    is_unfinished = sa.text("rank < 2")
    op.create_index(
        "kimi_requests_unfinished",
        "kimi_requests",
        ["key", "started_at"],
        sqlite_where=is_unfinished,
        postgresql_where=is_unfinished,
    )
