"""One row per request, its tags, and how far each journal file is drained."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TEXTS = ("key", "route", "target", "model", "tier", "effort", "ttl", "status")
_COUNTS = (
    "prompt_tokens",
    "cached_tokens",
    "write_5m_tokens",
    "write_1h_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "cost_nano",
)


def upgrade() -> None:
    """Makes the three tables and their indexes."""
    op.create_table(
        "kimi_requests",
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("hour", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _TEXTS),
        sa.Column("rank", sa.SmallInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("lease_until", sa.Double, nullable=False),
        *(sa.Column(name, sa.BigInteger) for name in _COUNTS),
        sa.Column("cost_source", sa.Text, nullable=False),
        sa.Column("estimated", sa.Boolean, nullable=False),
        sa.Column("assumed", sa.Boolean, nullable=False),
        sa.Column("prefix", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_index("kimi_requests_started", "kimi_requests", ["started_at"])
    op.create_index("kimi_requests_key", "kimi_requests", ["key", "started_at"])
    op.create_index("kimi_requests_model", "kimi_requests", ["model", "started_at"])
    is_open = sa.text("rank = 0")
    op.create_index(
        "kimi_requests_open",
        "kimi_requests",
        ["owner", "lease_until"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )
    op.create_table(
        "kimi_request_tags",
        sa.Column(
            "request_id",
            sa.Text,
            sa.ForeignKey("kimi_requests.request_id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("kimi_request_tags_value", "kimi_request_tags", ["tag", "value"])
    op.create_table(
        "kimi_journal_offsets",
        sa.Column("file", sa.Text, primary_key=True),
        sa.Column("drained_bytes", sa.BigInteger, nullable=False),
    )
