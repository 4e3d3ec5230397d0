"""What requests cost at other cards than those they were booked at; the booked cost stays where it is."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "kimi_repricings",
        sa.Column(
            "request_id",
            sa.Text,
            sa.ForeignKey("kimi_requests.request_id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("card", sa.Text, nullable=False),
        sa.Column("cost_nano", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
